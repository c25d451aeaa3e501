"""Beyond the papers: roles of plays adapt a language model that they cannot change, and share parts of the adapters.

Each of sixteen peers has the text of one role in Shakespeare's histories or tragedies. All have the same model of
characters, which was trained on the comedies and is frozen (`pretraining.py`), and train adapters of rank 8 beside all
of its layers. The experiment compares the model as it is, adapters of each peer's own, one common adapter, and two ways
to share adapters in part: the first factors by all, the second ones by genre or by nobody. With a server it compares
the average of each factor with the average of their products, which is not the product of the averages. The claims were
written down before any run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpeer.experiments.claims import in_order
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

#: Peers of each genre, in the order of the roles' names.
_GENRES: Mapping[str, range] = {"histories": range(1, 6), "tragedies": range(6, 17)}
_PEERS = sum(map(len, _GENRES.values()))
_BASE, _OWN, _COMMON = "the model as it is", "own adapters", "one common adapter"
_PARTIAL, _BY_GENRE = "A common, B own", "A common, B by genre"
_FACTORS, _PRODUCTS = "one common adapter, server, A and B averaged", "one common adapter, server, BA averaged"
_FIRST, _SECOND = "*.lora_A.weight", "*.lora_B.weight"


def _by_genre() -> dict[str, Any]:
    groups = {
        genre: {"parameters": [_SECOND], "members": [f"peer{number}" for number in peers]}
        for genre, peers in _GENRES.items()
    }
    return {"everyone": {"parameters": [_FIRST]}, **groups}


#: Scheme -> method, partial models, and optimizer.
_SCHEMES: Mapping[str, tuple[str, Mapping[str, Any] | None, str]] = {
    _BASE: ("local", None, "sgd,lr=1e-30"),  # a rate that changes no number
    _OWN: ("local", None, "adam,lr=0.003"),
    _COMMON: ("full-averaging", None, "adam,lr=0.003"),
    _PARTIAL: ("partial-averaging", {"everyone": {"parameters": [_FIRST]}}, "adam,lr=0.003"),
    _BY_GENRE: ("partial-averaging", _by_genre(), "adam,lr=0.003"),
    _FACTORS: ("fedavg", None, "adam,lr=0.003"),
    _PRODUCTS: ("flexlora", None, "adam,lr=0.003"),
}


def _cell(size: RunSize, scheme: str) -> Cell:
    method, models, optimizer = _SCHEMES[scheme]
    request = experiment_options(
        method,
        size,
        learning={
            "optimizer": optimizer,
            "batch_size": 16,
            "steps_between_averaging": 10,
            "lora": {"rank": 8, "targets": ["block*"]},
            "frozen": ["embedding*", "position", "block*.before*", "norm*", "output*"],
        },
        simulation={
            "dataset": "shakespeare,users=16,samples=200,plays=histories+tragedies,each=true",
            "split": "user",
            "peers": _PEERS,
            "validation": 0.2,
        },
        network=f"python:fedpeer.experiments.pretraining:character_model,steps={150 if size.few else 3000}",
        partial_models=models,
    )
    return Cell(label=scheme, variants={"": request})


def _better(text: str, label: str, other: str) -> PaperClaim:
    return in_order(text, (label, other), "bits", more=False)


ADAPTERS = Experiment(
    name="adapters",
    title="Adapters on a frozen language model: roles of plays share parts of them",
    source="beyond the papers, adapters",
    paper=(
        "adapters: Hu et al., LoRA, ICLR 2022; first factors in common: Guo et al., FedSA-LoRA, ICLR 2025; average of "
        "products: Bai et al., FlexLoRA, NeurIPS 2024"
    ),
    data=("shakespeare",),
    columns=("bits", "PM", "GM", "sent"),
    sizes={
        "quick": RunSize(
            rounds=4, seeds=2, few=True, minutes=2, differs="A model that was trained for 150 steps, 4 rounds."
        ),
        "default": RunSize(rounds=20, seeds=5, minutes=40),
        "full": RunSize(rounds=60, seeds=10, minutes=240),
    },
    cells=lambda size: tuple(_cell(size, scheme) for scheme in _SCHEMES),
    claims=(
        _better("adapters of one's own are better than the model as it is", _OWN, _BASE),
        _better("one common adapter is better than one's own", _COMMON, _OWN),
        _better("first factors in common, second ones of one's own are better than one's own", _PARTIAL, _OWN),
        _better(
            "first factors in common, second ones of one's own are better than one common adapter", _PARTIAL, _COMMON
        ),
        _better("second factors by genre are better than one common adapter", _BY_GENRE, _COMMON),
        _better("the average of the products BA is better than the averages of A and of B", _PRODUCTS, _FACTORS),
    ),
    notes=(
        "16 roles with the most text in Shakespeare's histories (5) and tragedies (11); of each 200 pieces of 80 "
        "characters, a quarter for testing, and a fifth of the others kept back to choose the round. The model is a "
        "causal transformer of width 64 with two blocks of four heads, trained for 3,000 steps on all roles of the "
        "comedies, and frozen. Adapters of rank 8 beside all linear layers of its blocks; Adam with rate 0.003, "
        "batches of 16 pieces, averaged after every 10 steps by push-sum, or by a server with all peers in each round. "
        "With a server the peers' own models are scored after their local steps, without one before any: compare the "
        "two lines with a server with each other. Sixteen such peers as processes take 1.1 GB of memory together, and "
        "a share on the wire has 58 kB (`python -m benchmarks.peer_memory`, in benchmarks/RESULTS.md). *Bits per "
        "character*: the mean cross-entropy of the next character, in bits."
    ),
)
