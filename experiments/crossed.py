"""Beyond the papers: two hierarchies that cross, how sites see images and what they call them.

Sixteen peers have each pair of one of four views (images turned by quarters) and one of four codes of the labels. The
first layer of a network depends on the view, the last one on the code, the middle on neither: so the first layer can be
a slice by view, the last one by code, and the middle common to all. These groups are no tree, since each peer is in one
group of each kind. The shared layers, the peers that share them, and the learning rate are chosen for each method on
training examples kept back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpeer.experiments.claims import above, in_order, near
from fedpeer.experiments.experiment import Cell, Experiment, RunSize
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.short_requests import experiment_options

_VIEWS = _CODES = 4
_PEERS = _VIEWS * _CODES


@dataclass(frozen=True, kw_only=True)
class _Images:
    """Images that peers see in several ways.

    dataset    the data set and its settings
    layers     layers of the perceptron
    views      the modifier of the split that makes the views
    test       number of test images, seen by each peer in its own way
    amounts    numbers of training images per peer
    few        those of the amounts that sizes below the largest use
    """

    dataset: str
    layers: str
    views: str = "views:4"
    test: int = 1_000
    amounts: Sequence[int]
    few: Sequence[int]


_DIGITS = _Images(dataset="digits", layers="64+64+32+10", test=400, amounts=(20, 50), few=(20, 50))
_MNIST = _Images(dataset="mnist,pixels=unit", layers="784+100+64+10", amounts=(20, 50, 150, 500), few=(50, 500))
_DATA: Mapping[str, _Images] = {
    "digits": _DIGITS,
    "digits with mixed pixels": replace(_DIGITS, views="views:4,kind=pixels", few=(50,)),
    "MNIST": _MNIST,
    "Fashion-MNIST": replace(_MNIST, dataset="fashion-mnist,pixels=unit"),
}
_RATES = ("adam,lr=0.001", "adam,lr=0.003")
_FIRST, _MIDDLE, _LAST = "hidden1", "hidden2", "output"
_ALONE, _ONE, _COMMON, _CROSSED = "alone", "one model", "common, rest own", "crossed"
_FOUND = "crossed, groups found"
_TOLD = "one model, told view and code"
_BY_VIEW, _BY_CODE = "by view only, rest own", "by code only, rest own"


def _code(peer: int) -> int:
    return peer * _CODES // _PEERS


def _models(
    view: Sequence[str] = (), code: Sequence[str] = (), everyone: Sequence[str] = (), seldom: Sequence[str] = ()
) -> dict[str, Any]:
    """Return partial models by the layers that peers of a view, peers of a code, and all peers share.

    Those of `seldom` ("view", "code", "everyone") are averaged in every fifth round.
    """

    def rhythm(name: str) -> dict[str, Any]:
        return {"gossip": {"every": 5}} if name in seldom else {}

    found: dict[str, Any] = {"everyone": {"modules": list(everyone), **rhythm("everyone")}} if everyone else {}
    views = [[peer for peer in range(_PEERS) if peer % _VIEWS == number] for number in range(_VIEWS)]
    codes = [[peer for peer in range(_PEERS) if _code(peer) == number] for number in range(_CODES)]
    for name, layers, groups in (("view", view, views), ("code", code, codes)):
        for number, group in enumerate(groups if layers else (), 1):
            members = [f"peer{peer + 1}" for peer in group]
            found[f"{name}{number}"] = {"modules": list(layers), "members": members, **rhythm(name)}
    return found


def _found_models(codes_after: int, *, seldom: bool = False, middle_by_code: bool = False) -> dict[str, Any]:
    """Return partial models whose members are found, by view after 20 rounds.

    Args:
        codes_after: rounds after which groups by code are found; above 20, peers of a view share the first layer then.
        seldom: whether all but views are averaged in every fifth round.
        middle_by_code: whether the middle layer goes with the last one; its biases stay common, so that all peers are
            in one group.
    """
    rhythm = {"gossip": {"every": 5}} if seldom else {}
    common = {"parameters": [f"{_MIDDLE}.bias"]} if middle_by_code else {"modules": [_MIDDLE]}
    code = {"modules": [_LAST], **({"parameters": [f"{_MIDDLE}.weight"]} if middle_by_code else {})}
    return {
        "everyone": {**common, **rhythm},
        "view": {"modules": [_FIRST], "members": "alike,after=20,by=inputs"},
        "code": {**code, "members": f"alike,after={codes_after},by=outputs", **rhythm},
    }


#: Method -> its layouts: an algorithm, and which peers share which layers.
_METHODS: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any] | None]]] = {
    _CROSSED: {
        "first by view, middle common, last by code": (
            "partial-averaging",
            _models([_FIRST], [_LAST], [_MIDDLE]),
        ),
        "first two by view, last by code": ("partial-averaging", _models([_FIRST, _MIDDLE], [_LAST])),
        "first by view, last two by code": ("partial-averaging", _models([_FIRST], [_MIDDLE, _LAST])),
        "first by view, last by code, middle own": ("partial-averaging", _models([_FIRST], [_LAST])),
        "first by view; seldom, middle common and last by code": (
            "partial-averaging",
            _models([_FIRST], [_LAST], [_MIDDLE], seldom=["everyone", "code"]),
        ),
        "first two by view, last by code seldom": (
            "partial-averaging",
            _models([_FIRST, _MIDDLE], [_LAST], seldom=["code"]),
        ),
    },
    _FOUND: {
        "codes after 60": ("partial-averaging", _found_models(60)),
        "codes after 60; seldom, middle common and last by code": ("partial-averaging", _found_models(60, seldom=True)),
        "codes after 60; last two by code": ("partial-averaging", _found_models(60, middle_by_code=True)),
        "codes after 40": ("partial-averaging", _found_models(40)),
        "codes after 40; last two by code": ("partial-averaging", _found_models(40, middle_by_code=True)),
        "views and codes after 20 rounds": ("partial-averaging", _found_models(20)),
        "views and codes after 20 rounds; last two by code": (
            "partial-averaging",
            _found_models(20, middle_by_code=True),
        ),
    },
    _ALONE: {"": ("local", None)},
    _ONE: {"": ("full-averaging", None)},
    _TOLD: {"": ("partial-averaging", {"everyone": {"neurons": "all"}})},
    _COMMON: {
        "first two common": ("partial-averaging", _models(everyone=[_FIRST, _MIDDLE])),
        "middle common": ("partial-averaging", _models(everyone=[_MIDDLE])),
        "first common": ("partial-averaging", _models(everyone=[_FIRST])),
        "last two common": ("partial-averaging", _models(everyone=[_MIDDLE, _LAST])),
        "first two common seldom": (
            "partial-averaging",
            _models(everyone=[_FIRST, _MIDDLE], seldom=["everyone"]),
        ),
    },
    _BY_VIEW: {
        "first": ("partial-averaging", _models([_FIRST])),
        "first two": ("partial-averaging", _models([_FIRST, _MIDDLE])),
        "first seldom": ("partial-averaging", _models([_FIRST], seldom=["view"])),
        "first two seldom": ("partial-averaging", _models([_FIRST, _MIDDLE], seldom=["view"])),
    },
    _BY_CODE: {
        "last": ("partial-averaging", _models(code=[_LAST])),
        "last two": ("partial-averaging", _models(code=[_MIDDLE, _LAST])),
        "last two seldom": ("partial-averaging", _models(code=[_MIDDLE, _LAST], seldom=["code"])),
    },
    "FedPer": {"": ("fedper", None)},
    "FedRep": {"": ("fedrep", None)},
    "IFCA": {f"{count} models": (f"ifca,clusters={count}", None) for count in (4, 8, 16)},
    "pFedVEM": {"": ("pfedvem,sigma=0.1,head_lr=0.001", None)},
}


def _label(data: str, images: int, method: str) -> str:
    return f"{data}, {images} images, {method}"


def _told_networks(layers: str) -> dict[str, str]:
    """Return the networks of all peers, by peer."""
    function = "python:fedpeer.experiments.told_network:told_network"
    return {
        f"peer{peer + 1}": f"{function},view={peer % _VIEWS},code={_code(peer)},of={_VIEWS},layers={layers}"
        for peer in range(_PEERS)
    }


def _cell(size: RunSize, data: str, images: int, method: str) -> Cell:
    world = _DATA[data]
    networks = _told_networks(world.layers) if method == _TOLD else {}
    variants = {
        "; ".join(filter(None, [name, rate])): experiment_options(
            algorithm,
            size,
            learning={
                "optimizer": rate,
                "batch_size": 10,
                "steps_between_averaging": 5,
                "start": "torch",
            },
            simulation={
                "dataset": world.dataset,
                "split": f"blocks:{images},shuffle=true,test={world.test}/{world.views}/codes:4",
                "peers": _PEERS,
                **({"networks": networks} if networks else {}),
            },
            network=networks.get("peer1", f"mlp,layers={world.layers},activation=relu"),
            partial_models=models,
            evaluations=1,
        )
        for name, (algorithm, models) in _METHODS[method].items()
        for rate in _RATES
    }
    return Cell(label=_label(data, images, method), variants=variants)


def _cells(size: RunSize) -> tuple[Cell, ...]:
    amounts = {data: world.few if size.few else world.amounts for data, world in _DATA.items()}
    return tuple(_cell(size, data, images, method) for data in _DATA for images in amounts[data] for method in _METHODS)


def _claims(data: str, images: int) -> tuple[PaperClaim, ...]:
    others = [_label(data, images, method) for method in _METHODS if method != _CROSSED]
    mine, found = (_label(data, images, method) for method in (_CROSSED, _FOUND))
    return (
        above(f"{data}, {images} images: crossed is the best of all", mine, others, "PM"),
        in_order(
            f"{data}, {images} images: crossed is better than by view only",
            (mine, _label(data, images, _BY_VIEW)),
            "PM",
            more=True,
        ),
        near(
            f"{data}, {images} images: groups that are found are less than 2 points from those written down",
            found,
            mine,
            "PM",
            within=2.0,
        ),
    )


CROSSED = Experiment(
    name="crossed",
    title="Two hierarchies that cross: four views and four codes of the labels, sixteen peers",
    source="beyond the papers, groups that cross",
    paper="slices: Bouchra Pilet, Frey, Taiani, IDA 2021; layers by group: as in Arivazhagan et al., FedPer, 2019",
    data=("digits", "mnist", "fashion-mnist"),
    columns=("PM", "recovered view", "recovered code"),
    sizes={
        "quick": RunSize(rounds=100, seeds=2, few=True, minutes=15, differs="Few numbers of images; no search."),
        "default": RunSize(rounds=200, seeds=5, searches=True, few=True, minutes=900, differs="Few numbers of images."),
        "full": RunSize(rounds=200, seeds=5, searches=True, search_seeds=2, minutes=3_000),
    },
    cells=_cells,
    claims=tuple(claim for data, world in _DATA.items() for images in world.amounts for claim in _claims(data, images)),
    notes=(
        "Peer k has view k mod 4 (images turned by that many quarters; where pixels are mixed, one of four orders of "
        "them) and one of four random codes of the labels, the same for four consecutive peers. Perceptrons with two "
        "hidden layers, ReLU, Adam, batches of 10, averaged after every 5 steps by push-sum. *Seldom*: that layer in "
        "every fifth round. Test images are the same for all, each seen and called as the peer does. *Told*: one "
        "network of all peers has view and code as eight more inputs of 0 and 1. *Groups found*: `members: alike` "
        "finds who sees and who calls alike, and nobody is told it: views after 20 rounds, codes then or later, when "
        "peers of a view share the first layer. It is shared by view, the last layer by code, the middle by all or by "
        "code, too. A line's settings are chosen among its layouts, at two rates each: crossed has twelve "
        "candidates, groups found fourteen, by view only eight, FedPer, FedRep and pFedVEM two. "
        "*Recovered*: the adjusted Rand index with the hidden groups."
    ),
)
