"""Two of four peers behind routers that masquerade and forward nothing: a third peer carries their messages."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.net.conftest import ENDLESS, all_reach, started
from tests.net.hosts import Hosts
from tests.net.masses import mass_errors
from tests.net.peers import Peer, finish, mean_accuracy, status_of, until

#: The two hosts behind routers; north runs `fedpeer init`, too.
INNER = ("north", "west")
pytestmark = [pytest.mark.soak, pytest.mark.parametrize("hosts", [INNER], indirect=True, ids=["routers"])]

#: Seconds until a connection that nobody ends counts as lost, and another one is open: 10 s without an answer, twice.
LOST_S = 60.0
#: Seconds of a cut; six minutes have been tried by hand.
CUT_S = 60.0


def outbound(wards: dict[str, Peer]) -> dict[str, Peer]:
    """Write `listen: none` into the files of the peers behind routers."""
    for id in INNER:
        text = wards[id].file.read_text(encoding="utf-8")
        wards[id].file.write_text(re.sub(r"(?m)^listen: .*$", "listen: none", text), encoding="utf-8")
    return wards


def carriers(wards: dict[str, Peer]) -> list[str]:
    """Return the peers that have carried between the two, in the order in which they are named."""
    texts = [text for id in INNER for text in wards[id].logged("carried") if any(each in text for each in INNER)]
    return [text.split()[0] for text in texts]


def test_all_average_and_mass_is_conserved(made: Callable[..., dict[str, Peer]]) -> None:
    wards = outbound(made(rounds=30))
    peers = started(wards, round=3)
    finish(peers)
    assert [peer.done for peer in peers] == [30] * 4
    assert set(carriers(wards)) <= {"east", "south"}
    assert carriers(wards)
    waits = [line for peer in peers for line in peer.logged("went_on_without", "after the deadline")]
    assert not waits
    assert not [line for peer in peers for line in peer.logged("membership", "is dead")]
    assert max(mass_errors([peer.file for peer in peers]).values()) <= 1e-12
    assert mean_accuracy(peers) > 0.85
    assert wards["east"].logged("reachable", "https://")


def test_the_next_one_carries_when_the_carrier_is_killed(made: Callable[..., dict[str, Peer]]) -> None:
    wards = outbound(made(**ENDLESS))
    peers = started(wards, round=5)
    until(lambda: bool(carriers(wards)), "somebody carries")
    first = carriers(wards)[0]
    (other,) = {"east", "south"} - {first}
    until(lambda: status_of(wards[first])["carried"]["bytes"] > 0, "it counts the bytes")
    wards[first].kill()
    until(lambda: other in carriers(wards), f"{other} carries")
    rest = [peer for peer in peers if peer.id != first]
    all_reach(rest, max(peer.done for peer in rest) + 20)
    wards[first].start()
    all_reach(peers, max(peer.done for peer in peers) + 5)


def test_a_router_that_forgets_all_connections_costs_no_round(
    made: Callable[..., dict[str, Peer]], hosts: Hosts
) -> None:
    wards = outbound(made(**ENDLESS))
    peers = started(wards, round=5)
    until(lambda: bool(carriers(wards)), "somebody carries")
    for router in INNER:
        hosts.forget(router)
        before = max(peer.done for peer in peers)
        until(lambda before=before: all(peer.done > before + 20 for peer in peers), "rounds go on", LOST_S)  # type: ignore[misc]
    assert not [line for peer in peers for line in peer.logged("declared_dead") if "itself" in line]


def test_a_cut_costs_neither_weight_nor_work(made: Callable[..., dict[str, Peer]], hosts: Hosts) -> None:
    wards = outbound(made(**ENDLESS))
    peers = started(wards, round=5)
    until(lambda: bool(carriers(wards)), "somebody carries")
    north = wards["north"]
    rest = [peer for peer in peers if peer is not north]
    hosts.cut(["north"], [peer.id for peer in rest])
    end = time.monotonic() + CUT_S
    before = [peer.done for peer in rest]
    until(lambda: time.monotonic() > end, "the cut lasts", 2 * CUT_S)
    assert all(peer.done > done + CUT_S / 10 for peer, done in zip(rest, before, strict=True)), "three go on meanwhile"
    hosts.heal()
    before = [peer.done for peer in peers]
    until(lambda: all(peer.done > done for peer, done in zip(peers, before, strict=True)), "all go on", LOST_S)
    all_reach(peers, max(peer.done for peer in peers) + 20)
    for peer in peers:
        peer.signal(signal.SIGTERM)
    finish(peers)
    assert max(mass_errors([peer.file for peer in peers]).values()) <= 1e-12
    assert mean_accuracy(peers) > 0.85


def test_a_peer_whose_address_changes_goes_on(made: Callable[..., dict[str, Peer]], hosts: Hosts) -> None:
    """A laptop moves: nobody can connect to the address in its file, so it opens the connections that it can, and the
    one peer that it reaches carries those to the two behind routers."""
    wards = outbound(made(**ENDLESS))
    peers = started(wards, round=5)
    until(lambda: bool(carriers(wards)), "somebody carries")
    hosts.move("east", "10.77.0.77")
    before = max(peer.done for peer in peers)
    until(lambda: all(peer.done > before + 20 for peer in peers), "rounds go on", LOST_S)
