"""Beyond the papers: learning with gossip averages, lost messages and slow peers.

`push-sum` replaces the paper's exact mean by a few exchanges of push-sum on a graph. `message-loss` and `stragglers`
run whole peers over simulated links in virtual time (network engine): with a percentage of all messages lost, and with
some peers ten times slower to train. A point of `stragglers` is read at a time instead of after a round, as peers that
do not wait are in different rounds.

The claims follow from the graphs' mixing matrices, from the conservation of mass, and from how long a round waits for
its slowest peer. They were written down before the runs; the numbers of peers and examples were tried out before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedpeer.experiments.claims import falls, highest
from fedpeer.experiments.experiment import AtSecond
from fedpeer.experiments.figure import Figure, FigureWorld, Scheme, labelled
from fedpeer.experiments.mnist_figures import SEVEN
from fedpeer.experiments.results import PaperClaim
from fedpeer.experiments.schemes import LOCAL, PM, level, mnist_scheme

#: Text on the page in place of a paper.
_NOBODY = "no paper has this figure; tasks and networks as in Bouchra Pilet, Frey, Taiani, IDA 2021"
_PUSH_SUM: dict[str, Any] = {"protocol": "push-sum", "tolerance": None}
#: Settings of an average that takes one exchange or none.
_AT_ONCE: dict[str, Any] = {"exchanges": None, "tolerance": 1e-4}

_EXCHANGES = "exchanges in an averaging"
_GRAPHS = ("complete", "one-peer-exponential", "k-regular:4", "ring")
_EXACT, _ALONE = "exact mean", "alone"


def _after(line: str, exchanges: int) -> str:
    return labelled(line, _EXCHANGES, exchanges)


def _near(text: str, line: str, exchanges: int, within: float) -> PaperClaim:
    """Claim that a line is within this many points of the exact mean, on either side."""
    return falls(text, _after(_EXACT, exchanges), _after(line, exchanges), PM, least=-within, most=within)


PUSH_SUM = Figure(
    name="push-sum",
    source="beyond the papers, push-sum",
    title="Push-sum in place of the exact mean: MNIST, level 80, two digits exchanged at 7 of 16 peers",
    paper=_NOBODY,
    data=("mnist",),
    shares=("fig17",),
    schemes=lambda exchanges: (
        replace(level(80), name=_EXACT, gossip={"protocol": "exact", **_AT_ONCE}),
        *(replace(level(80), name=graph, gossip={"topology": graph}) for graph in _GRAPHS),
        replace(LOCAL, name=_ALONE, gossip={"protocol": "exact", **_AT_ONCE}),
    ),
    settings=(1, 2, 4, 8),
    setting=_EXCHANGES,
    world=lambda exchanges: mnist_scheme(100, 30, f"swap:8+9,on={SEVEN}", gossip={**_PUSH_SUM, "exchanges": exchanges}),
    few=((_EXACT, "k-regular:4", "ring", _ALONE), (1, 4)),
    columns=(PM, "disagreement"),
    minutes=(1, 4, 12),
    log=True,
    claims=[
        _near("Complete: one exchange is the exact mean, within 0.1 points", "complete", 1, 0.1),
        _near(
            "One-peer exponential: four exchanges are the exact mean of 16 peers, within 0.1 points",
            "one-peer-exponential",
            4,
            0.1,
        ),
        _near("k-regular:4: four exchanges are within half a point of the exact mean", "k-regular:4", 4, 0.5),
        _near("Ring: eight exchanges are within a point of the exact mean", "ring", 8, 1.0),
        highest("Ring: one exchange is below the exact mean", [_after(_EXACT, 1)], [_after("ring", 1)], PM),
        highest("Ring: one exchange is above learning alone", [_after("ring", 1)], [_after(_ALONE, 1)], PM),
        highest(
            "One exchange leaves peers on the ring further apart than on any other graph",
            [_after("ring", 1)],
            [_after(graph, 1) for graph in _GRAPHS[:-1]],
            "disagreement",
        ),
    ],
)

_DIGITS = "mlp:64+30+10"
_WAITING, _EAGER, _CENTRAL = "synchronous push-sum", "asynchronous push-sum", "coordinator"
_LOSS = "messages lost, %"


def _lost(line: str, percent: int) -> str:
    return labelled(line, _LOSS, percent)


MESSAGE_LOSS = Figure(
    name="message-loss",
    source="beyond the papers, message loss",
    title="Lost messages: digits, two of them exchanged at 3 of 8 peers, whole peers over simulated links",
    paper=_NOBODY,
    data=("digits",),
    schemes=lambda percent: (
        Scheme(_WAITING, "partial-averaging", network=_DIGITS),
        Scheme(_EAGER, "partial-averaging", network=_DIGITS, learning={"mode": "asynchronous"}),
        Scheme(_CENTRAL, "partial-averaging", network=_DIGITS, gossip={"protocol": "coordinator", **_AT_ONCE}),
    ),
    settings=(0, 10, 20, 30),
    setting=_LOSS,
    world=lambda percent: FigureWorld(
        dataset="digits",
        split="blocks:87/swap:8+9,on=1-3",
        peers=8,
        updates=87,
        rounds=12,
        gossip={**_PUSH_SUM, "exchanges": 2},
        engine="network",
        faults=f"links,loss={percent / 100:g}",
    ),
    few=((_WAITING, _EAGER, _CENTRAL), (0, 30)),
    columns=(PM, "seconds", "sent"),
    minutes=(1, 4, 14),
    claims=[
        *(
            falls(f"{line}: 30 % of lost messages cost a point at most", _lost(line, 0), _lost(line, 30), PM, most=1.0)
            for line in (_WAITING, _EAGER, _CENTRAL)
        ),
        falls(
            f"{_WAITING}: who waits for each share comes to the same accuracy at 30 %, within 0.1 points",
            _lost(_WAITING, 0),
            _lost(_WAITING, 30),
            PM,
            least=-0.1,
            most=0.1,
        ),
        highest(
            "At 30 % the rounds of synchronous push-sum take longer than those of asynchronous push-sum",
            [_lost(_WAITING, 30)],
            [_lost(_EAGER, 30)],
            "seconds",
        ),
    ],
    notes="Rounds are as many at each loss. Who waits pays for a loss in time, and in bytes that are sent again; who "
    "waits for nobody goes on with fewer shares, since a lane rests until its share is acknowledged.",
)

_SECONDS = "virtual seconds"
#: Number of slow peers among sixteen -> the fault that makes them slow.
_SLOW = {0: "", 2: "slow:2+10", 4: "slow:2+6+10+14"}
#: Rounds that last three seconds, without slow peers and with them; asynchronous peers keep the fast peers' pace.
_ROUNDS = {"synchronous": (30, 4), "asynchronous": (36, 36)}


def _line(mode: str, slow: int) -> str:
    return f"{mode}, {slow} slow"


def _pace(mode: str, slow: int) -> Scheme:
    learning = {"mode": mode, "rounds": _ROUNDS[mode][slow > 0]}
    return Scheme(_line(mode, slow), "partial-averaging", network=_DIGITS, learning=learning, faults=_SLOW[slow])


def _by(mode: str, slow: int, seconds: int) -> str:
    return labelled(_line(mode, slow), _SECONDS, seconds)


STRAGGLERS = Figure(
    name="stragglers",
    source="beyond the papers, stragglers",
    title="Slow peers: digits, two of them exchanged at 7 of 16 peers; some take ten times as long to train",
    paper=_NOBODY,
    data=("digits",),
    schemes=lambda seconds: tuple(_pace(mode, slow) for mode in _ROUNDS for slow in _SLOW),
    settings=(1, 2, 3),
    setting=_SECONDS,
    world=lambda seconds: FigureWorld(
        dataset="digits",
        split=f"blocks:87/swap:8+9,on={SEVEN}",
        peers=16,
        updates=80,
        rounds=_ROUNDS["synchronous"][0],  # each line has its own
        read=AtSecond(seconds),
        read_every=1,
        gossip={**_PUSH_SUM, "exchanges": 2},
        engine="network",
    ),
    few=(tuple(_line(mode, slow) for mode in _ROUNDS for slow in (0, 4)), (1, 2, 3)),
    minutes=(2, 3, 10),
    claims=[
        highest(
            "4 slow: after three seconds those who wait for nobody are ahead",
            [_by("asynchronous", 4, 3)],
            [_by("synchronous", 4, 3)],
            PM,
        ),
        highest(
            "4 slow: after one second they are further than those who wait are after three",
            [_by("asynchronous", 4, 1)],
            [_by("synchronous", 4, 3)],
            PM,
        ),
        falls(
            "None slow: after three seconds the two are within two points",
            _by("synchronous", 0, 3),
            _by("asynchronous", 0, 3),
            PM,
            least=-2.0,
            most=2.0,
        ),
        falls(
            "Who waits for nobody loses five points at most by 4 slow peers, after three seconds",
            _by("asynchronous", 0, 3),
            _by("asynchronous", 4, 3),
            PM,
            most=5.0,
        ),
    ],
    notes="An update takes a millisecond of virtual time, ten of a slow peer; a message takes 2.5 ms.",
)
