"""Beyond the papers: the methods that people compare with, without a server and with one, on the same data and steps.

Every method takes the same number of local steps, with the same batches. For methods that average after each step
(D-PSGD, SGP, CHOCO-SGD), a round is one step, and there are more rounds in proportion; so bytes are those of the whole
run. Peers without a server exchange once after a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpeer.experiments.claims import above, part_of
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

#: Examples in a step, and steps in a round; sizes with few cells have fewer.
_BATCH, _STEPS, _FEW_STEPS = 32, 20, 3
#: Learning rates of plain steps.
_RATES = (0.05, 0.1, 0.02)


@dataclass(frozen=True)
class _Method:
    """A line of the table.

    name       the algorithm with its settings
    gossip     settings of the averaging, besides one exchange
    single     whether a round is one step
    momentum   of the local steps
    weights    of push-sum at the start of an averaging
    models     partial models; none: those of the method
    """

    name: str
    gossip: Mapping[str, Any] = field(default_factory=dict)
    single: bool = False
    momentum: float = 0.0
    weights: str = "uniform"
    models: Mapping[str, Any] | None = None


#: A slice that all peers share, and a slice for the groups that the peers find, a third of the dense layer.
_GROUPS: Mapping[str, Any] = {
    "everyone": {"neurons": {"input": "all", "conv1": "all", "conv2": "all", "hidden1": 25, "output": "all"}},
    "similar": {"depends_on": ["everyone"], "neurons": {"hidden1": 15}, "members": "alike,after=5"},
}
#: Each peer with one random other.
_PAIRS = {"protocol": "push-pull", "topology": "complete"}
_METHODS: Mapping[str, _Method] = {
    "Local": _Method("local"),
    "full averaging": _Method("full-averaging"),
    "partial averaging": _Method("partial-averaging"),
    "partial averaging, groups found": _Method("partial-averaging", models=_GROUPS),
    "D-PSGD": _Method("d-psgd", single=True),
    "SGP": _Method("full-averaging", {"topology": "one-peer-exponential"}, single=True),
    "CHOCO-SGD": _Method("choco-sgd,share=0.1", single=True),
    "DFedAvgM": _Method("dfedavgm", momentum=0.9),
    "NoLoCo": _Method("noloco", _PAIRS),
    "EL-Oracle": _Method("full-averaging", {"topology": "el-oracle:4"}),
    "EL-Local": _Method("full-averaging", {"topology": "el-local:4"}, weights="restart"),
    "gossip learning": _Method("full-averaging", _PAIRS),
    "DFedAlt": _Method("dfedalt"),
    "DFedSalt": _Method("dfedsalt"),
    "DFedPGP": _Method("dfedalt", {"topology": "exponential"}),
    "DisPFL": _Method("dispfl"),
    "FedAvg": _Method("fedavg"),
    "FedAvgM": _Method("fedavgm,momentum=0.5"),
    "FedAdam": _Method("fedadam,server_lr=0.01"),
    "FedYogi": _Method("fedyogi,server_lr=0.01"),
    "IFCA": _Method("ifca,clusters=4"),
    "FedPer": _Method("fedper"),
    "FedRep": _Method("fedrep"),
    "Ditto": _Method("ditto"),
    "APFL": _Method("apfl"),
    "FedALA": _Method("fedala"),
}
#: Methods whose peers average whole networks without a server.
_WHOLE = (
    "full averaging", "D-PSGD", "SGP", "CHOCO-SGD", "DFedAvgM", "NoLoCo", "EL-Oracle", "EL-Local", "gossip learning",
)  # fmt: skip
_FEW = ("Local", "D-PSGD", "DFedAlt", "FedYogi")
#: Data -> data set, fraction that is kept, fewest examples of a peer.
_DATA: Mapping[str, tuple[str, float, int]] = {
    "Fashion-MNIST": ("fashion-mnist,shape=image", 0.1, 200),
    "CIFAR-10": ("cifar10", 1.0, 50),
}
#: Data and split -> method -> accuracy in % and its standard deviation over three trials, in the benchmark of PFLlib
#: (pfllib.com/benchmark.html, 2025, read on 2026-11-29): 20 clients, all of whom take part, 75 % of all examples for
#: training, a CNN of 582,026 parameters, batches of 10, one pass a round, the best of 2,000 rounds. Its FedAvg (80.41)
#: is one model for all, which is no column here.
_PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "Fashion-MNIST, two labels": {
        "FedPer": "99.47 ± 0.03",
        "FedRep": "99.56 ± 0.03",
        "Ditto": "99.44 ± 0.06",
        "APFL": "99.41 ± 0.02",
        "FedALA": "99.57 ± 0.01",
    },
}
_NETWORK = "cnn:8+16,hidden=50,kernel=5"
_SPLITS: Mapping[str, str] = {"Dirichlet 0.3": "dirichlet:0.3,least={least}", "two labels": "labels:2"}


def _cell(size: RunSize, data: str, split: str, label: str) -> Cell:
    dataset, fraction, least = _DATA[data]
    method, steps = _METHODS[label], _FEW_STEPS if size.few else _STEPS
    rounds = {"steps_between_averaging": 1, "rounds": steps * size.rounds} if method.single else {}
    kept = fraction / 5 if size.few else fraction
    published = _PUBLISHED.get(f"{data}, {split}", {}).get(label)
    momentum = f",momentum={method.momentum:g}" if method.momentum else ""
    # With momentum 0.9 steps of a tenth of the rate go as far.
    optimizers = [f"sgd,lr={rate * (1 - method.momentum):g}{momentum}" for rate in _RATES]
    return Cell(
        label=f"{data}, {split}, {label}",
        variants={
            optimizer: experiment_options(
                method.name,
                size,
                learning={
                    "batch_size": _BATCH,
                    "steps_between_averaging": steps,
                    "optimizer": optimizer,
                    "weights": method.weights,
                    **rounds,
                },
                simulation={
                    "dataset": dataset,
                    "split": f"{_SPLITS[split].format(least=least)}/subsample:{kept:g}",
                },
                network=_NETWORK,
                partial_models=method.models,
                gossip={"exchanges": 1, **method.gossip},
                evaluations=2,
            )
            for optimizer in optimizers
        },
        published={} if published is None else {"PM": published},
    )


def _cells(size: RunSize) -> tuple[Cell, ...]:
    if size.few:
        return tuple(_cell(size, "Fashion-MNIST", "Dirichlet 0.3", label) for label in _FEW)
    return tuple(_cell(size, data, split, label) for data in _DATA for split in _SPLITS for label in _METHODS)


def _claims(place: str) -> tuple[PaperClaim, ...]:
    def label(method: str) -> str:
        return f"{place}, {method}"

    return (
        above(
            f"{place}: DFedAlt is above the averages of whole networks without a server",
            label("DFedAlt"),
            [label(each) for each in _WHOLE],
            "PM",
        ),
        above(
            f"{place}: DFedSalt is at most half a point below DFedAlt",
            label("DFedSalt"),
            [label("DFedAlt")],
            "PM",
            by=-0.5,
        ),
        above(
            f"{place}: the worst tenth of the peers has more of DFedAlt than of learning alone",
            label("DFedAlt"),
            [label("Local")],
            "worst",
        ),
        *(
            above(
                f"{place}: {method} is at most half a point below FedAvg",
                label(method),
                [label("FedAvg")],
                "PM",
                by=-0.5,
            )
            for method in ("FedALA", "APFL")
        ),
        part_of(
            f"{place}: DFedAvgM needs at most a tenth of the bytes of D-PSGD",
            label("DFedAvgM"),
            label("D-PSGD"),
            "all",
            most=0.1,
        ),
    )


TABLE = Experiment(
    name="dfl-table",
    title="Methods without a server and with one, on the same steps: label skew in two data sets",
    source="beyond the papers, methods to compare with",
    paper="the source of each method is in its file, and in the table of docs/algorithms.md",
    data=("fashion-mnist", "cifar10"),
    columns=("PM", "GM", "worst", "all"),
    sizes={
        "quick": RunSize(
            peers=6, rounds=2, seeds=1, few=True, minutes=1, differs="4 methods, one split, 6 steps: no result."
        ),
        "default": RunSize(peers=20, rounds=20, seeds=3, minutes=250),
        "full": RunSize(peers=20, rounds=100, seeds=5, searches=True, minutes=5_500, differs="Meant for a GPU."),
    },
    cells=_cells,
    claims=tuple(claim for data in _DATA for split in _SPLITS for claim in _claims(f"{data}, {split}")),
    notes=(
        "20 peers, a tenth of Fashion-MNIST, and all of CIFAR-10 that there is: here 2,500 + 500 images of it. "
        "Classes are divided in proportions from Dir(0.3), or each peer has two. A peer tests on examples in the "
        "proportions of its own. 32 examples a step, 20 steps between two averagings, but for D-PSGD, SGP and "
        "CHOCO-SGD, which average after each; one exchange on a 4-regular graph, but for SGP and DFedPGP, whose "
        "graphs are directed, EL-Oracle and EL-Local, whose graphs of degree 4 are drawn anew each time, and NoLoCo "
        "and gossip learning, in which random pairs average. CHOCO-SGD sends the largest tenth of a difference; its "
        "bytes are those of whole copies here, as the vector engine sends no messages, and with the wire encoding "
        "top-k:0.1,pace=1 about a fifth of them. DisPFL keeps half of the weights and sends models and masks whole. "
        "With a server all clients take part, and their own models are scored after the local steps of the round; "
        "without one they are scored after the averaging, before any local step. So averages of whole networks stand "
        "beside GM, the server's model before such steps, and not beside PM of methods with a server. GM is of the "
        "last round alone: it does not depend on who took part, as all do, and on CIFAR-10 it still rises between the "
        "tenth round and the twentieth, so no mean over the last ten stands beside it. IFCA has four "
        "models; the groups that peers find themselves are sought after the fifth round. FedBN is left out: it is "
        "for networks with batch normalization, which D-PSGD, DisPFL, DFedSalt, APFL and FedALA are not for. "
        '"Theirs" is the benchmark of PFLlib ([pfllib.com](http://pfllib.com/benchmark.html), read on 29 November '
        "2026; after ± the standard deviation of three trials), the one published table that divides a data set of "
        "ours alike: Fashion-MNIST over 20 clients with two labels each. It has ten times as many examples, 582,026 "
        "parameters instead of 43,184, and the best of 2,000 rounds instead of the twentieth. Its FedAvg is judged "
        "as one model for all (80.41 ± 0.08), ours after a round's local steps, so they do not stand side by side. "
        "The tables of the papers have other networks, ResNet-18 for most, and 100 clients."
    ),
)
