"""Durable state: all that a peer must not forget, and the only ways in which it changes.

It has the peer's parameters, its training state, and for each averaging group the mass held, the shares that arrived
early, the channels to and from its neighbors, and the place in an averaging. `apply` takes one entry (`entries.py`),
changes the durable state, and returns the transfers that the entry made. It decides nothing: `Node` knows which peers
are alive, late or trusted. So a durable state equals a snapshot and the entries after it, to the last bit.

The conservation law: over all peers, the mass that is held, waits, or is under way and not yet taken equals the mass
put in less the mass written off (proof in `gossip/transfers.py`). A peer puts in its weight when it comes in, and the
difference when an averaging starts with another weight. A peer that lost memory starts with a new account, and each
neighbor writes off what its channels with the earlier incarnation had gained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import assert_never

import torch
from torch import Tensor

from fedpeer.algorithms.draws import Draws
from fedpeer.gossip.incarnations import reopened
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.noise_phase import NoisePhase, give_masked, masked_shares
from fedpeer.gossip.proofs import Signed
from fedpeer.gossip.push_sum import absorb
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing, acknowledged, give, give_nothing, take
from fedpeer.peer.state.consensus_state import ConsensusState
from fedpeer.peer.state.entries import (
    Acked,
    Adopted,
    Averaged,
    Began,
    ClientStateSaved,
    Closed,
    CommitStateChanged,
    Entry,
    Left,
    LocalTrained,
    MaskedShares,
    Met,
    ModelStored,
    NoShares,
    Opened,
    OthersAhead,
    RealShares,
    Reborn,
    Returned,
    Revoked,
    ShareApplied,
    Started,
    TermChanged,
    UpdateMade,
    VoteLost,
    VoterSetKnown,
    VotingAllowed,
)
from fedpeer.peer.state.outlier_check import OutlierCheck, length_of
from fedpeer.peer.wire.mean_bytes import values_of

#: Weight at or below which a group counts as empty: rounding leaves so much of a weight that was all given away.
NOTHING_HELD = 1e-12
#: (round, exchange, sender) of a share that waits.
_Place = tuple[int, int, str]


@dataclass(frozen=True, eq=False)
class GroupState:
    """One averaging group of this peer.

    held         mass that the peer has; with `waiting` and the open transfers it is all that the peer can give
    waiting      shares of exchanges that the peer has not closed yet, by place
    out, into    channels to and from each neighbor with which it ever exchanged shares, by id
    at           (round, exchange) that the peer is in, or waits to open
    expect       neighbors whose shares of this exchange are expected; None between two exchanges
    masked_to    neighbors that were sent masked shares in the averaging of `at` (`gossip/noise_phase.py`)
    nothing      places for which a neighbor has announced that nothing will come
    active       the peer gives in the averaging of `at`: it has moved, or was activated (`gossip/event_trigger.py`)
    settled_D    (D,) float32 after the last averaging in which it took part, if averaging is event-triggered; None: not
                 known
    reach        outlier check by this peer's own training; None: no training of it is known yet
    put          weight put in by this incarnation
    written_off  weight that went to, less weight that came from, earlier incarnations of neighbors and revoked peers
    before       by neighbor, weight that its earlier incarnations gave beyond what they got; never below 0
    """

    held: Mass
    waiting: Mapping[_Place, Mass] = field(default_factory=dict)
    out: Mapping[str, Outgoing] = field(default_factory=dict)
    into: Mapping[str, Incoming] = field(default_factory=dict)
    at: tuple[int, int] = (0, 0)
    expect: tuple[str, ...] | None = None
    masked_to: frozenset[str] = frozenset()
    nothing: frozenset[_Place] = frozenset()
    active: bool = False
    settled_D: Tensor | None = None
    reach: OutlierCheck | None = None
    put: float = 1.0
    written_off: float = 0.0
    before: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Neighbors whose share of this exchange has not arrived."""
        here = {place[2] for place in (*self.waiting, *self.nothing) if place[:2] == self.at}
        return tuple(peer for peer in self.expect or () if peer not in here)

    @cached_property
    def weight(self) -> float:
        """Weight held and waiting."""
        return float(self.held.weight) + sum(float(mass.weight) for mass in self.waiting.values())

    def with_channel(self, peer: str, channel: Outgoing) -> GroupState:
        return replace(self, out={**self.out, peer: channel})


@dataclass(frozen=True)
class Rules:
    """Rules by which entries change the durable state; the same while a peer is in one federation.

    draws         source of random numbers, by purpose and round
    form          wire form of values; `forms`: by group, where the form differs
    eager         asynchronous mode: shares are added on arrival; `eagers`: by group, where the mode differs
    start_weight  this peer's weight when it comes in: 1, or its number of examples
    masked        averagings begin with a noise phase, in and after which estimates may mean nothing
    drifts        averaging of some group is event-triggered; `drifted`: it was so under an earlier contract
    """

    me: str
    draws: Draws
    form: Form
    eager: bool = False
    start_weight: float = 1.0
    masked: bool = False
    drifts: bool = False
    drifted: bool = False
    forms: Mapping[str, Form] = field(default_factory=dict)
    eagers: Mapping[str, bool] = field(default_factory=dict)

    def eager_in(self, group: str) -> bool:
        """Return whether shares of a group are added on arrival."""
        return self.eagers.get(group, self.eager)

    def form_of(self, group: str) -> Form:
        """Return the wire form of a group's values."""
        return self.forms.get(group, self.form)


@dataclass
class DurableState:
    """All that a peer must not forget.

    index        by group, places (D,) int64 of its scalars in the parameters; they are missing for a group that the
                 peer's plan no longer has, until `regrouped` drops it
    spans        the same as `index`, consecutive places as slices, which are many times quicker to read
    x_n          (n,) float32 parameters before the round's training; after it, its result
    s_k          (k,) training state: of an optimizer, float32, or the bytes of another state, uint8
                 (`node/trainer.py`); `fresh` while there is none
    round        1, 2, ...: the round in which it trains, or after whose training it averages; 0 before the first
    trained      the training of this round is done
    incarnation  of this peer: 1, and one more whenever it lost memory
    generation   number of its last start; `first`: of the first one on this disk with this key (0: not known)
    met          incarnation by which each neighbor is known; `met_as`: (generation, nonce, signature of all three) of
                 the process that was met under that incarnation
    left         it handed everything over and left
    rekeyed      it was stored when this peer had another key: the peer was revoked and admitted again
    consensus_states     consensus states by group, including groups that the peer left (`put_aside`); empty if peers
                 average by themselves
    places       by group that a coordinator averages, places (D,) int64 of its scalars in the parameters
    """

    rules: Rules
    index: Mapping[str, Tensor]
    x_n: Tensor
    s_k: Tensor
    groups: dict[str, GroupState]
    fresh: bool = True
    round: int = 0
    trained: bool = False
    incarnation: int = 1
    generation: int = 0
    first: int = 0
    met: dict[str, int] = field(default_factory=dict)
    met_as: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    left: bool = False
    rekeyed: bool = False
    consensus_states: dict[str, ConsensusState] = field(default_factory=dict)
    places: Mapping[str, Tensor] = field(default_factory=dict)
    spans: Mapping[str, slice | Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.spans.keys() != self.index.keys():
            self.spans = {group: _span(place_D) for group, place_D in self.index.items()}

    @staticmethod
    def blank(rules: Rules, index: Mapping[str, Tensor], x_n: Tensor, state_size: int) -> DurableState:
        """Return the state before anything happened: initial parameters, with the start weight in every group."""
        groups = {group: _entered(x_n[place_D], rules) for group, place_D in index.items()}
        return DurableState(rules, index, x_n, x_n.new_zeros(state_size), groups)

    def copy(self) -> DurableState:
        """Return a copy that later entries do not change. Tensors are never changed in place, so none is copied."""
        return replace(
            self,
            groups=dict(self.groups),
            met=dict(self.met),
            met_as=dict(self.met_as),
            consensus_states=dict(self.consensus_states),
        )

    def regrouped(self, index: Mapping[str, Tensor]) -> dict[str, float]:
        """Go on with other groups; return the weight written off in each group that no longer exists.

        Their values stay in the parameters; new groups start with the values of the parameters.
        """
        self.x_n = self._assembled() if not self.trained else self.x_n
        gone = {group: holding.weight for group, holding in self.groups.items() if group not in index}
        self.groups = {
            group: self.groups[group] if group in self.groups else _entered(self.x_n[place_D], self.rules)
            for group, place_D in index.items()
        }
        self.index = index
        self.spans = {group: _span(place_D) for group, place_D in index.items()}
        return gone

    def seated(self, places: Mapping[str, Tensor], blank: Mapping[str, ConsensusState]) -> None:
        """Go on in these consensus groups: put the states of all other groups aside; new groups start `blank`.

        A peer that has forgotten promises may have made some in a new group, too.
        """
        known, lost = self.consensus_states, max((each.lost for each in self.consensus_states.values()), default=0)
        self.consensus_states = {group: each.put_aside() for group, each in known.items() if group not in blank} | {
            group: known[group].taken_up(new) if group in known else replace(new, lost=lost)
            for group, new in blank.items()
        }
        self.places = places

    def estimate_D(self, group: str) -> Tensor:
        """Return the peer's estimate of the group's average, (D,) float64."""
        return self.groups[group].held.estimate_D

    def reach(self, group: str) -> OutlierCheck:
        """Return the outlier check of a group, by this peer's own training."""
        known = self.groups[group].reach
        return known or OutlierCheck(start=length_of(self.x_n[self.spans[group]], self.x_n))

    def apply(self, entry: Entry) -> dict[str, NumberedTransfer]:
        """Change the durable state; return the transfers that were made in the entry's group, by recipient."""
        match entry:
            case Opened():
                return self._open(entry)
            case ShareApplied():
                self._take(entry)
            case Closed():
                round, exchange = self.groups[entry.group].at
                holding = _added(self.groups[entry.group], (round, exchange + 1))
                self.groups[entry.group] = replace(holding, at=(round, exchange + 1), expect=None)
            case Acked():
                holding = self.groups[entry.group]
                channel, _ = acknowledged(holding.out[entry.peer], entry.taken, self.rules.form_of(entry.group))
                if entry.signature:
                    channel = replace(channel, signed=Signed(channel.acked, channel.acked_weight, entry.signature))
                self.groups[entry.group] = holding.with_channel(entry.peer, channel)
            case LocalTrained():
                self._learn(entry)
            case Began():
                self.x_n = self._assembled()
                self.round, self.trained = entry.round, False
                for group, place_D in self.index.items():
                    if self.rules.drifts and self.groups[group].active:
                        self.groups[group] = replace(self.groups[group], active=False, settled_D=self.x_n[place_D])
            case Started():
                self.first = self.first if self.generation and not self.rekeyed else entry.generation
                self.generation = entry.generation
            case Met():
                self._close_channels(entry.peer)
                self.met[entry.peer] = entry.incarnation
                self.met_as[entry.peer] = entry.generation, entry.nonce, entry.signature
            case Revoked():
                self._close_channels(entry.peer)
                self.met.pop(entry.peer, None)
                self.met_as.pop(entry.peer, None)
            case Reborn():
                self.x_n = self.x_n if self.trained else self._assembled()
                for group, place_D in self.index.items():
                    holding = self.groups[group]
                    # The record of masked shares is gone with the old account: only the model itself is left.
                    noisy = self.rules.masked and self.trained
                    unknown = noisy or float(holding.held.weight) <= NOTHING_HELD
                    value_D = self.x_n[place_D] if unknown else holding.held.estimate_D
                    held = Mass.of(value_D, self.rules.start_weight)
                    self.groups[group] = GroupState(
                        held, at=holding.at, reach=holding.reach, put=self.rules.start_weight
                    )
                self.incarnation, self.met, self.met_as, self.left = entry.incarnation, {}, {}, False
                self.rekeyed = False
            case Adopted():
                holding = self.groups[entry.group]
                held, reach = Mass.of(entry.value_D, float(holding.held.weight)), holding.reach
                if reach is not None:
                    reach = replace(reach, start=max(reach.start, float(entry.value_D.norm())))
                self.groups[entry.group] = replace(holding, held=held, reach=reach)
            case Returned():
                holding = self.groups[entry.group]
                channel = holding.out[entry.peer]
                held, _ = reopened(holding.held, channel, Incoming(), self.rules.form_of(entry.group))
                self.groups[entry.group] = replace(
                    holding.with_channel(entry.peer, replace(channel, open=())),  # numbers are never used twice
                    held=held,
                    masked_to=holding.masked_to - {entry.peer},
                )
            case Left():
                self.left = True
            case (
                TermChanged()
                | CommitStateChanged()
                | ModelStored()
                | UpdateMade()
                | ClientStateSaved()
                | Averaged()
                | VoterSetKnown()
                | VotingAllowed()
                | VoteLost()
                | OthersAhead()
            ):
                self.consensus_states[entry.group] = self.consensus_states[entry.group].changed(entry)
                self.x_n = entry.x_n if isinstance(entry, ClientStateSaved) else self.x_n
                if isinstance(entry, Averaged):
                    self._average(entry.group)
            case _:
                assert_never(entry)
        return {}

    def _average(self, group: str) -> None:
        content, place_D = self.consensus_states[group].content, self.places.get(group)
        assert content is not None, "a round is in force"
        if place_D is not None:  # else a later roster has taken this peer out of the group
            self.x_n = self.x_n.clone()
            self.x_n[place_D] = values_of(content, len(place_D))

    def _assembled(self) -> Tensor:
        x_n = self.x_n.clone()
        for group, span in self.spans.items():
            if float(self.groups[group].held.weight) > NOTHING_HELD:  # without mass there is no estimate
                x_n[span] = self.estimate_D(group).to(x_n.dtype)
        return x_n

    def _learn(self, entry: LocalTrained) -> None:
        step_n = entry.x_n - self.x_n
        for group, span in self.spans.items():
            holding = self.groups[group]
            held = absorb(holding.held, self.x_n[span], entry.x_n[span])
            reach = self.reach(group).after(length_of(step_n[span], step_n), entry.round)
            self.groups[group] = replace(holding, held=held, reach=reach)
        self.x_n, self.s_k, self.fresh = entry.x_n, entry.s_k, entry.fresh
        self.round, self.trained = entry.round, True

    def _open(self, entry: Opened) -> dict[str, NumberedTransfer]:
        at = (entry.round, entry.exchange)
        whole = isinstance(entry.shares, RealShares) and entry.shares.whole
        holding = _added(self.groups[entry.group], at, everything=whole)
        held, put = holding.held, holding.put
        if entry.start_weight is not None:
            put += entry.start_weight - float(held.weight)
            held = Mass.of(held.estimate_D, entry.start_weight)
        channels = {peer: holding.out.get(peer, Outgoing()) for peer in entry.to}
        masked_to = holding.masked_to if holding.at[0] == entry.round else frozenset()
        purpose = f"wire {entry.group} {self.incarnation} {sum(channel.made for channel in channels.values())}"
        draws = self.rules.draws.numpy(purpose, self.rules.me, entry.round)
        active, form = True, self.rules.form_of(entry.group)
        match entry.shares:
            case NoShares():
                channels, shares = give_nothing(channels, at)
                active = holding.active and entry.exchange > 0
            case MaskedShares(fraction, key, scale):
                vectors = {peer: masked_shares(key, peer, held.value_D.shape[-1], scale) for peer in entry.to}
                held, masking, channels, shares = give_masked(
                    held, NoisePhase(len(masked_to), masked_to), channels, fraction, form, at, draws, vectors
                )
                masked_to = masking.masked_to
            case RealShares(fraction):
                held, channels, shares = give(held, channels, fraction, form, at, draws, whole=whole)
        out = {**holding.out, **channels}
        self.groups[entry.group] = replace(
            holding, held=held, put=put, out=out, at=at, expect=entry.expect, masked_to=masked_to, active=active
        )
        return shares

    def _take(self, entry: ShareApplied) -> None:
        holding, share = self.groups[entry.group], entry.share
        length = len(holding.held.value_D)
        channel, mass = take(holding.into.get(entry.sender, Incoming()), share, self.rules.form_of(entry.group), length)
        if share.payload.dtype == mass.value_D.dtype:  # not converted: still the message's own buffer
            mass = Mass(mass.value_D.clone(), mass.weight)
        if entry.signature:
            channel = replace(channel, signed=Signed(channel.taken, channel.taken_weight, entry.signature))
        holding = replace(holding, into={**holding.into, entry.sender: channel})
        if share.nothing:
            place = (share.round, share.exchange, entry.sender)
            waits = place[:2] >= holding.at and not entry.at_once
            holding = replace(holding, nothing=holding.nothing | ({place} if waits else set()))
        elif self.rules.eager_in(entry.group) or entry.at_once or (share.round, share.exchange) < holding.at:
            late = share.round == self.round == holding.at[0]  # in this averaging: its sender waits for ours
            holding = replace(holding, held=holding.held + mass, active=holding.active or late)
        else:
            place = (share.round, share.exchange, entry.sender)
            before = holding.waiting.get(place)
            holding = replace(holding, waiting={**holding.waiting, place: mass if before is None else before + mass})
        self.groups[entry.group] = holding

    def exchanged_with(self, peer: str) -> list[str]:
        """Return the groups in which there is a channel to or from this peer."""
        return [group for group, holding in self.groups.items() if peer in holding.out or peer in holding.into]

    def _close_channels(self, peer: str) -> None:
        """Close the channels to and from the known incarnation of a peer (`incarnations.py`)."""
        for group in self.exchanged_with(peer):
            holding = self.groups[group]
            out, into = holding.out.get(peer, Outgoing()), holding.into.get(peer, Incoming())
            held, lost = reopened(holding.held, out, into, self.rules.form_of(group))
            before = max(holding.before.get(peer, 0.0) - lost, 0.0)
            self.groups[group] = replace(
                holding,
                held=held,
                out={other: channel for other, channel in holding.out.items() if other != peer},
                into={other: channel for other, channel in holding.into.items() if other != peer},
                masked_to=holding.masked_to - {peer},
                written_off=holding.written_off + lost,
                before={**holding.before, peer: before},
            )


def _span(place_D: Tensor) -> slice | Tensor:
    """Return consecutive places as a slice, other places as they are."""
    if not len(place_D):
        return place_D
    first = int(place_D[0])
    follow = torch.equal(place_D, torch.arange(first, first + len(place_D)))
    return slice(first, first + len(place_D)) if follow else place_D


def _entered(estimate_D: Tensor, rules: Rules) -> GroupState:
    held, settled_D = Mass.of(estimate_D, rules.start_weight), estimate_D if rules.drifts else None
    return GroupState(held, settled_D=settled_D, put=rules.start_weight)


def _added(holding: GroupState, at: tuple[int, int], *, everything: bool = False) -> GroupState:
    """Add shares that wait for exchanges before `at`, in the order of exchanges and ids; any of them activates."""
    held, waiting = holding.held, dict(holding.waiting)
    for place in sorted(place for place in holding.waiting if everything or place[:2] < at):
        held = held + waiting.pop(place)
    nothing = frozenset(place for place in holding.nothing if place[:2] >= at)
    active = holding.active or len(waiting) < len(holding.waiting)
    return replace(holding, held=held, waiting=waiting, nothing=nothing, active=active)
