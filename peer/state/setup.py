"""Fixed setup of a peer's process, and the groups in which the peer learns under one roster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from fedpeer.config.contract import HeldContract
from fedpeer.config.settings import FederationSettings, GossipSettings
from fedpeer.gossip.averaging import Averaging
from fedpeer.learning.groups import PeerGroup
from fedpeer.peer.state.reader import PLAIN, StateReader
from fedpeer.peer.state.voters import ConsensusGroup
from fedpeer.peer.wire.roster import Roster
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.slicing.plan import Group


@dataclass(frozen=True, eq=False)
class PeerGroups:
    """A peer's groups under one roster.

    groups               averaging groups of this peer in which shares are exchanged, by id; `averaging`: how each
                         averages
    elsewhere            groups of other peers
    consensus_by_group   consensus groups of this peer, in which rounds are coordinated
    gossip               by group and consensus group, the settings of its averaging
    asynchronous         ids of `groups` in which shares are given while peers train, and not in rounds
    """

    roster: Roster
    groups: Mapping[str, PeerGroup]
    averaging: Mapping[str, Averaging]
    elsewhere: Mapping[str, Group]
    consensus_by_group: Mapping[str, ConsensusGroup] = field(default_factory=dict)
    gossip: Mapping[str, GossipSettings] = field(default_factory=dict)
    asynchronous: Set[str] = frozenset()

    @cached_property
    def group_peers(self) -> frozenset[str]:
        """Ids of all peers of the roster in some group or consensus group of this peer, itself included."""
        return self._members(self.groups) | self._coordinated_peers

    @cached_property
    def share_peers(self) -> frozenset[str]:
        """Ids of the peers with which this peer exchanges shares in rounds, itself included."""
        return self._members(self.groups.keys() - self.asynchronous)

    @cached_property
    def round_peers(self) -> frozenset[str]:
        """Ids of the peers that have rounds in common with this one, itself included."""
        return self.share_peers | self._coordinated_peers

    @property
    def _coordinated_peers(self) -> frozenset[str]:
        members = (each.members for each in self.consensus_by_group.values())
        return frozenset(peer for each in members for peer in each if peer in self.roster.by_id)

    def _members(self, groups: Iterable[str]) -> frozenset[str]:
        members = (self.groups[group].members for group in groups)
        return frozenset(peer for each in members for peer in each if peer in self.roster.by_id)

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.roster.entries)


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """Fixed setup of a peer's process.

    federation   settings with all defaults filled in
    contract     (32 bytes) digest of the learning contract in force; `held`: that contract, and how it came
    peer_groups  groups under the roster at the start; `peer_groups_of` makes them for a later roster
    address      URL under which others reach this peer
    models       partial models that it implements
    seeds        ids of peers that are greeted first; other peers are greeted after a while, or once they are known to
                 be alive; empty: all at once
    nonce        drawn at this start
    reader       answers questions about the state that training leaves
    own_weights  each averaging starts anew, with the algorithm's own weights
    secret       source of masked shares; b"": no masked shares
    signed       newest known contract signed by the authority; None: only the file is known
    unfit        returns why this peer cannot change to the contract of this text under a roster; "": it can
    earlier      rosters before that of the start, as far as its file has them
    has_server   whether its algorithm has a server, whose client it is
    """

    me: str
    federation: FederationSettings
    contract: bytes
    held: HeldContract
    peer_groups: PeerGroups
    peer_groups_of: Callable[[Roster], PeerGroups]
    address: str = ""
    models: tuple[str, ...] = ()
    seeds: frozenset[str] = frozenset()
    nonce: int = 0
    reader: StateReader = PLAIN
    own_weights: bool = False
    secret: bytes = b""
    signed: SignedContract | None = None
    unfit: Callable[[bytes, Roster], str] = lambda text, roster: ""
    earlier: tuple[Roster, ...] = ()
    has_server: bool = False

    def ticks(self, seconds: float) -> int:
        """Return these seconds in ticks, at least one."""
        return max(1, round(seconds / self.federation.gossip.tick))
