"""What is fixed for a process of a peer, and the groups in which it learns by one roster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fedpeer.config.contract import HeldContract
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import Averaging
from fedpeer.learning.groups import PeerGroup
from fedpeer.peer.state.reader import PLAIN, StateReader
from fedpeer.peer.state.voters import ConsensusGroup
from fedpeer.peer.wire.roster import Roster
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.slicing.plan import Group


@dataclass(frozen=True, eq=False)
class PeerGroups:
    """With whom a peer learns, by one roster: its groups, how each averages, and the groups of others; and the
    consensus groups
    in which rounds are coordinated."""

    roster: Roster
    groups: Mapping[str, PeerGroup]
    averaging: Mapping[str, Averaging]
    elsewhere: Mapping[str, Group]
    consensus_by_group: Mapping[str, ConsensusGroup] = field(default_factory=dict)

    @cached_property
    def mates(self) -> frozenset[str]:
        """All who are in some group or consensus group of this peer's."""
        members = [
            *(each.members for each in self.groups.values()),
            *(each.members for each in self.consensus_by_group.values()),
        ]
        return frozenset(peer for each in members for peer in each if peer in self.roster.by_id)

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.roster.entries)


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """What is fixed for a process.

    federation   with everything filled in
    contract     (32 bytes) digest of the learning contract in force; `held` is it, and how it came
    circle       by the roster at the start; `peer_groups_of` makes it for a later roster
    address      the URL others reach this peer by
    models       partial models that it implements
    seeds        ids of those who are greeted first, and the others only when they are known to be there, or after a
                 while; none: all at once
    nonce        drawn at this start
    reader       what its algorithm says of the state that training leaves
    own_weights  whether each averaging begins anew, from the algorithm's own weights
    secret       what masked shares come from; b"" where there are none
    signed       the newest contract by the authority that is known; None: there is none but the file
    unfit        why it cannot go over to the contract of this spelling; "": it can
    part         what it does in the consensus groups of its circle: it is the client of a server, or one of the equals
                 of groups that are averaged by coordinators; None: there are no consensus groups
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
    unfit: Callable[[bytes], str] = lambda text: ""
    part: Literal["client", "averager"] | None = None

    def ticks(self, seconds: float) -> int:
        """As many ticks as these seconds, at least one."""
        return max(1, round(seconds / self.federation.gossip.tick))
