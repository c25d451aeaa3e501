from __future__ import annotations

from typing import Any

import pytest

from fedpeer.gossip.dissemination import MemberStatus
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.neighbors import Clock, Neighbors, NeighborStatus, status_of
from fedpeer.peer.state.reputation import SUSPICIOUS_MAX
from tests.gossip.swim import World, ids

MET: dict[str, Any] = {"met": True, "agreed": {"all"}}


@pytest.mark.parametrize(
    ("other", "member", "listens", "status"),
    [
        (None, "unknown", True, "unmet"),
        (Neighbor(agreed={"all"}), "alive", True, "unmet"),
        (Neighbor(met=True, agreed={"some"}), "alive", True, "disagreeing"),
        (Neighbor(**MET), "left", False, "paused"),
        (Neighbor(**MET), "left", True, "left"),
        (Neighbor(**MET, buried_at=0), "dead", True, "doubted"),
        (Neighbor(**MET), "dead", True, "dead"),
        (Neighbor(**MET), "alive", True, "active"),
        (Neighbor(**MET, buried_at=0), "suspect", True, "active"),
        (Neighbor(**MET), "finished", True, "active"),
        (Neighbor(**MET), "unknown", True, "active"),
    ],
)
def test_a_neighbor_has_one_status_in_a_group(
    other: Neighbor | None, member: MemberStatus, listens: bool, status: NeighborStatus
) -> None:
    assert status_of(other, "all", member, listens=listens) == status


def test_a_block_ends_at_its_tick_and_costs_nothing_afterwards() -> None:
    """Else each message would need all that is derived from neighbors anew, for as long as the process runs."""
    me, other = ids(2)
    clock = Clock()
    others = Neighbors(World(count=2, seed=0).start(me), clock)
    others[other] = Neighbor(**MET)
    for _ in range(SUSPICIOUS_MAX):
        others.charge("implausible", other, 1.0)
    seen: list[tuple[NeighborStatus, bool]] = []
    for now in (1, 2, 60, 61):
        clock.advance(now)
        others.reconsider()
        kept = (other, "all") in others.statuses
        seen.append((others.status(other, "all"), kept))
    assert seen == [("paused", False), ("paused", True), ("active", False), ("active", True)]
