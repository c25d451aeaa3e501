from __future__ import annotations

from typing import Any

import pytest

from fedpeer.gossip.dissemination import MemberStatus
from fedpeer.peer.state.neighbor import Neighbor
from fedpeer.peer.state.neighbors import NeighborStatus, status_of

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
