"""The faults of a simulated run, as plain data drawn from a seed; one line of text replays them.

A run has two phases. Until tick `heal` any fault may happen. Then every link delivers, every peer is started again, and
all guarantees for the time after faults must hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np

from fedpeer.algorithms.draws import Draws
from fedpeer.config.choice import ChoiceError, call_choice, nearest_name, parse_choice
from fedpeer.data.dataset import DataError
from fedpeer.data.splits.shares import peer_numbers
from fedpeer.sims.network.links import Cut, LinkRules, partition

#: kill      the process dies and is restarted after `ticks`
#: flip      the same, and a bit of the newest snapshot flips meanwhile
#: old       the same, with an older state of the disk
#: lose      the same, with an empty disk
#: pause     the process is stopped for `ticks` and continues
#: stall     the same for lack of CPU time: after it the process sees the current time before it has read what arrived
#: step      its clock leaps forward by `ticks`
#: full      its disk takes no saves for `ticks`
FaultKind = Literal["kill", "flip", "old", "lose", "pause", "stall", "step", "full"]

#: The ways in which a peer can lie; `lies.py` describes each.
LIE_NAMES = (
    "life",
    "duplicate",
    "weight",
    "exchange",
    "value",
    "verdict",
    "contract",
    "roster",
    "term",
    "silent",
    "ahead",
)

#: Most ticks for which a drawn fault keeps a process down, pauses it, leaps its clock or fills its disk: half a minute.
TICKS_MAX = 1200.0
#: Most virtual seconds until a fault begins, and most that it lasts: a month.
_SECONDS_MAX = 30 * 86400.0
#: Ticks beyond which a fault counts as endless.
NEVER = 1e8
#: Largest factor by which a peer may be slower to train than others.
_PACE_MAX = 1e4


@dataclass(frozen=True)
class Act:
    """One fault of one peer."""

    tick: float
    kind: FaultKind
    peer: str
    ticks: float


@dataclass(frozen=True)
class Lying:
    """One peer that lies from tick `begin` to tick `end` in these ways (`lies.py`), besides its regular work."""

    begin: float
    end: float
    peer: str
    lies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """All faults of a run.

    rates   by peer, the speed of its clock; default 1
    paces   by peer, the factor by which it takes longer to train; default 1; it also holds after `heal`
    heal    the tick at which all other faults end; default: never
    """

    seed: int = 0
    links: LinkRules = field(default_factory=LinkRules)
    cuts: tuple[Cut, ...] = ()
    acts: tuple[Act, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    paces: tuple[tuple[str, float], ...] = ()
    liars: tuple[Lying, ...] = ()
    heal: float = math.inf

    def line(self) -> str:
        """Return the faults as one line of JSON, which `parse_faults` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))


def over(faults: Faults) -> float:
    """Return the tick at which the last cut has ended and the last peer has come back; endless faults do not count."""
    ends = [cut.end for cut in faults.cuts] + [act.tick + act.ticks for act in faults.acts]
    return max([0.0, *(min(end, faults.heal) for end in ends if end < NEVER)])


def parse_faults(line: str) -> Faults:
    """Parse the output of `Faults.line`."""
    data = json.loads(line)
    return Faults(
        seed=data["seed"],
        links=LinkRules(**data["links"]),
        cuts=tuple(
            Cut(**{**each, "senders": tuple(each["senders"]), "receivers": tuple(each["receivers"])})
            for each in data["cuts"]
        ),
        acts=tuple(Act(**each) for each in data["acts"]),
        rates=tuple((peer, rate) for peer, rate in data["rates"]),
        paces=tuple((peer, pace) for peer, pace in data.get("paces", ())),  # older lines have none
        liars=tuple(Lying(**{**each, "lies": tuple(each["lies"])}) for each in data.get("liars", ())),
        heal=data["heal"],
    )


def faults_from(text: str, peers: Sequence[str], tick: float = 0.025) -> Faults:
    """Parse a user's faults.

    Args:
        text: choices of `FAULTS` joined by `/`, where a number alone is a seed; or a line that a run printed.
        tick: seconds of a tick.

    Raises:
        ChoiceError: the text is invalid; the message has all mistakes, with the way out.
    """
    if text.startswith("{"):
        return _of_line(text, peers)
    faults, mistakes, once = Faults(), list[str](), set[str]()
    for piece in map(str.strip, text.split("/")):
        try:
            choice = parse_choice(f"seed:{piece}" if piece.isdecimal() else piece)
            if choice.name in once:
                raise ChoiceError(f"faults: {choice.name} is given twice; write all of its settings once")
            once |= {choice.name} & {"seed", "links"}  # the second would take the place of the first
            if once == {"seed", "links"}:
                raise ChoiceError("faults: a seed draws the links too; leave out links, or the seed")
            faults = call_choice(choice, FAULTS, "kind of faults")(faults, peers, tick)
        except ChoiceError as mistake:
            mistakes.append(str(mistake))
    spans = [(cut.begin, cut.end) for cut in faults.cuts] + [(liar.begin, liar.end) for liar in faults.liars]
    if late := [begin for begin, end in spans if faults.heal <= begin < end]:
        ends = f"all faults end at {faults.heal * tick:g} s; begin earlier, or write a larger heal (in ticks)"
        mistakes.append(f"faults: a cut or a liar begins at {min(late) * tick:g} s, and {ends}")
    if mistakes:
        raise ChoiceError("; ".join(dict.fromkeys(mistakes)))
    return faults


def _of_line(line: str, peers: Sequence[str]) -> Faults:
    """Parse a line that a run printed, which must be about these peers."""
    try:
        faults = parse_faults(line)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise ChoiceError("the line of faults cannot be read; copy the whole line, or write a seed") from None
    named = [act.peer for act in faults.acts] + [liar.peer for liar in faults.liars]
    named += [peer for peer, _ in (*faults.rates, *faults.paces)]
    named += [peer for cut in faults.cuts for peer in (*cut.senders, *cut.receivers)]
    if unknown := next((peer for peer in named if peer not in peers), None):
        raise ChoiceError(
            f"the line of faults is about {unknown}, and the peers are {peers[0]} to {peers[-1]}; take as many peers "
            "as that run had, or write a seed"
        )
    return faults


def _seed(before: Faults, peers: Sequence[str], tick: float, *, seed: int, heal: float = 1200.0) -> Faults:
    """a mix drawn from the seed, until tick heal: bad links, cuts, peers that die or pause, clocks that leap"""
    if seed < 0 or heal < 0:
        raise ChoiceError(f"faults: seed = {seed}, heal = {heal:g}: both must be 0 or more")
    drawn = draw_faults(seed, peers, heal)
    acts = tuple(sorted((*before.acts, *drawn.acts), key=lambda act: act.tick))
    return replace(drawn, paces=before.paces, liars=before.liars, cuts=(*before.cuts, *drawn.cuts), acts=acts)


def _links(
    before: Faults,
    peers: Sequence[str],
    tick: float,
    *,
    loss: float = 0.0,
    repeat: float = 0.0,
    reorder: float = 0.0,
    delay: float = 0.1,
    jitter: float = 0.0,
    bytes_per_tick: float | None = None,
    heal: float = math.inf,
) -> Faults:
    """properties of all links: shares of messages lost, repeated, reordered; delay, jitter in ticks; bytes per tick"""
    shares = {"loss": loss, "repeat": repeat, "reorder": reorder}
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ChoiceError(f"faults: {name} = {share:g}: write a fraction below 1, such as 0.3")
    if delay <= 0 or jitter < 0:
        raise ChoiceError(f"faults: delay = {delay:g}, jitter = {jitter:g}: delay must be above 0, jitter 0 or more")
    if bytes_per_tick is not None and bytes_per_tick < 1:
        raise ChoiceError(f"faults: bytes_per_tick = {bytes_per_tick:g}: write 1 or more")
    if heal < 0:
        raise ChoiceError(f"faults: heal = {heal:g}: write 0 or more")
    carried = math.inf if bytes_per_tick is None else bytes_per_tick
    rules = LinkRules(**shares, delay=delay, jitter=jitter, bytes_per_tick=carried)
    return replace(before, links=rules, heal=heal)


def _slow(before: Faults, peers: Sequence[str], tick: float, *, on: tuple[str, ...], times: float = 10.0) -> Faults:
    """peers (slow:1-4, slow:2+5) that take so many times as long to train as the others"""
    if not 0 < times <= _PACE_MAX:
        raise ChoiceError(f"faults: times = {times:g}: write a number from above 0 to {_PACE_MAX:g}")
    paces = dict(before.paces) | dict.fromkeys(_chosen("slow", on, peers), times)
    return replace(before, paces=tuple(paces.items()))


def _cut_off(
    before: Faults, peers: Sequence[str], tick: float, *, on: tuple[str, ...], at: float, for_: float
) -> Faults:
    """peers (cut:1, cut:1+2) that are cut off from the others in both directions; at=10,for=30 in seconds"""
    side, rest = _sides("cut", on, peers)
    begin, end = _span("cut", at, for_, tick)
    return replace(before, cuts=before.cuts + partition(begin, end, side, rest))


def _one_way(
    before: Faults,
    peers: Sequence[str],
    tick: float,
    *,
    on: tuple[str, ...],
    at: float,
    for_: float,
    direction: Literal["out", "in"] = "out",
) -> Faults:
    """peers (oneway:1) whose messages do not reach the others, or that receive none from them (direction=in)"""
    side, rest = _sides("oneway", on, peers)
    begin, end = _span("oneway", at, for_, tick)
    senders, receivers = (side, rest) if direction == "out" else (rest, side)
    return replace(before, cuts=(*before.cuts, Cut(begin=begin, end=end, senders=senders, receivers=receivers)))


def _freeze(
    before: Faults, peers: Sequence[str], tick: float, *, on: tuple[str, ...], at: float, for_: float
) -> Faults:
    """peers (freeze:1) whose process is stopped, as by SIGSTOP; at=10,for=30 in seconds"""
    return _acts(before, "pause", _chosen("freeze", on, peers), _span("freeze", at, for_, tick))


def _kill(before: Faults, peers: Sequence[str], tick: float, *, on: tuple[str, ...], at: float, for_: float) -> Faults:
    """peers (kill:1) whose process dies at second `at` and is restarted after `for` seconds"""
    return _acts(before, "kill", _chosen("kill", on, peers), _span("kill", at, for_, tick))


def _liar(
    before: Faults,
    peers: Sequence[str],
    tick: float,
    *,
    on: tuple[str, ...],
    lies: tuple[str, ...] = LIE_NAMES,
    at: float = 5.0,
    for_: float = _SECONDS_MAX,
) -> Faults:
    """peers (liar:3) that lie from second `at` on, for `for` seconds; lies=life+verdict, default: all lies"""
    for lie in lies:
        if lie not in LIE_NAMES:
            raise ChoiceError(f'faults: there is no lie "{lie}"; {nearest_name(lie, LIE_NAMES)}')
    side, _ = _sides("liar", on, peers)
    begin, end = _span("liar", at, for_, tick)
    return replace(before, liars=(*before.liars, *(Lying(begin, end, peer, lies) for peer in side)))


def _acts(before: Faults, kind: FaultKind, peers: Sequence[str], span: tuple[float, float]) -> Faults:
    begin, end = span
    acts = (*before.acts, *(Act(begin, kind, peer, end - begin) for peer in peers))
    return replace(before, acts=tuple(sorted(acts, key=lambda act: act.tick)))


def _sides(name: str, on: tuple[str, ...], peers: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the named peers, and the others."""
    side = _chosen(name, on, peers)
    if len(side) == len(peers):
        raise ChoiceError(f"faults: {name} names all peers; leave out at least one")
    return side, tuple(peer for peer in peers if peer not in side)


def _chosen(name: str, on: tuple[str, ...], peers: Sequence[str]) -> tuple[str, ...]:
    """Return the peers with these numbers."""
    try:
        return tuple(peers[number] for number in sorted(peer_numbers(on, len(peers), name)))
    except DataError as error:
        raise ChoiceError(f"faults: {error}") from None


def _span(name: str, at: float, seconds: float, tick: float) -> tuple[float, float]:
    """Return the ticks at which a fault begins and ends."""
    if not (0 <= at <= _SECONDS_MAX and 0 < seconds <= _SECONDS_MAX):
        raise ChoiceError(
            f"faults: {name} with at={at:g},for={seconds:g}: write seconds up to {_SECONDS_MAX:.0f}, for above 0"
        )
    return at / tick, (at + seconds) / tick


#: The kinds of faults that a user can choose: `7` or `seed:7`, `links,loss=0.3`, `slow:1-4`, `cut:1,at=10,for=30`.
#: Each is added to those before it.
FAULTS: Mapping[str, Callable[..., Faults]] = {
    "seed": _seed,
    "links": _links,
    "slow": _slow,
    "cut": _cut_off,
    "oneway": _one_way,
    "freeze": _freeze,
    "kill": _kill,
    "liar": _liar,
}


def draw_faults(
    seed: int, peers: Sequence[str], heal: float, kinds: Sequence[FaultKind] = ("kill", "pause", "step")
) -> Faults:
    """Draw a mix of faults from the seed. The rates are drawn too, so that rare mixes appear.

    Loss and repeats reach 30 %, delays several ticks; there are up to three cuts of any shape, including one-way ones,
    and up to two faults of each given kind per peer.
    """
    draws = Draws(seed).numpy("faults")
    links = LinkRules(
        delay=float(draws.uniform(0.01, 1.0)),
        jitter=float(draws.uniform(0.0, 3.0)),
        loss=float(draws.uniform(0.0, 0.3)),
        repeat=float(draws.uniform(0.0, 0.3)),
        reorder=float(draws.uniform(0.0, 0.5)),
        bytes_per_tick=float(10 ** draws.uniform(4, 7)),
    )
    cuts = tuple(cut for _ in range(draws.integers(0, 4)) for cut in _cut(draws, peers, heal))
    acts = [
        Act(float(draws.uniform(0, heal)), kind, peer, float(min(draws.exponential(heal / 10), TICKS_MAX)))
        for peer in peers
        for kind in kinds
        for _ in range(draws.integers(0, 3) if draws.random() < 0.5 else 0)
    ]
    rates = tuple((peer, float(draws.uniform(0.8, 1.25))) for peer in peers)
    return Faults(
        seed=seed, links=links, cuts=cuts, acts=tuple(sorted(acts, key=lambda a: a.tick)), rates=rates, heal=heal
    )


def _cut(draws: np.random.Generator, peers: Sequence[str], heal: float) -> tuple[Cut, ...]:
    begin, end = sorted(draws.uniform(0, heal, 2).tolist())
    mixed = [peers[place] for place in draws.permutation(len(peers))]
    first = mixed[: draws.integers(1, max(2, len(peers) - 1), endpoint=True)]
    both = partition(begin, end, first, [peer for peer in peers if peer not in first])
    return both[:1] if draws.random() < 0.3 else both
