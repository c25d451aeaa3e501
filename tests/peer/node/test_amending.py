"""Going over to another contract: what a peer still owes of the one before."""

from __future__ import annotations

from fedpeer.peer.state.events import AggregateUpdates, Effect, NewContract, Note
from fedpeer.sims.network.faults import Faults
from tests.faults.amended import OVER_TICKS, STARTS, Amended
from tests.faults.group_cluster import GroupCluster
from tests.faults.group_cluster import world as groups_world
from tests.faults.peer_cluster import world


def test_the_evaluation_of_the_round_before_is_taken_by_the_process_that_goes_on() -> None:
    before = world(2, learning__evaluate_every=1)
    cluster = Amended(before, world(2, learning__evaluate_every=3), Faults())
    evaluated: dict[str, list[int]] = {peer: [] for peer in before.peers}

    def said(peer: str, effect: Effect) -> None:
        if isinstance(effect, Note) and effect.what == "evaluated":
            evaluated[peer].append(int(str(effect.fields["round"])))

    cluster.simulator.said = said
    cluster.simulator.start()
    cluster.run(10.0)
    cluster.simulator.tell("peer1", NewContract(cluster.contract))
    assert cluster.run(OVER_TICKS, lambda: all(max(rounds, default=0) > STARTS for rounds in evaluated.values()))
    for rounds in evaluated.values():
        assert rounds == [*range(1, STARTS), 6], "every round by the first contract, every third by the second"


def test_no_mean_counts_an_update_by_a_contract_that_says_otherwise_of_the_group() -> None:
    """So a committed round needs no number of a contract: who decides on it goes by what is the same for its group."""
    cluster = GroupCluster(groups_world(), Faults())
    cluster.simulator.start()
    assert cluster.reach(3, OVER_TICKS)
    coordinator = cluster.leading("everyone")
    assert coordinator is not None
    other = next(peer for peer in cluster.made.peers if peer != coordinator)
    state = cluster.nodes()[coordinator].state
    counted: list[frozenset[str]] = []
    said = cluster.simulator.said

    def concluded(peer: str, effect: Effect) -> None:
        said(peer, effect)
        if isinstance(effect, AggregateUpdates) and effect.group == "everyone" and peer == coordinator:
            counted.append(frozenset(effect.updates))

    cluster.simulator.said = concluded
    state.others[other].agreed.discard("everyone")  # as after a Hello under another contract
    state.others.changed()
    begun = len(counted)
    assert cluster.run(cluster.simulator.now + OVER_TICKS, lambda: len(counted) >= begun + 4)
    assert all(other not in updates for updates in counted[begun + 1 :]), counted
