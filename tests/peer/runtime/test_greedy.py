"""Attacks of a member by its shares: it loads a running peer with weight that no peer has, or with shares that wait.

The peer takes the shares that an honest member could have sent, rejects the rest by name, and can still take part in
averaging.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeer.peer.node.channels import WAITING_BYTES
from fedpeer.peer.state.reputation import Reputation
from tests.forked import python
from tests.peer.runtime.bob import Bob, bob_at

pytestmark = pytest.mark.slow

#: Number of shares that the member sends: three that are taken, and more than the ten that pause its edge.
TIMES = 16


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Bob]:
    """bob, before he has received any share."""
    with bob_at(tmp_path) as running:
        yield running


def held(bob: Bob) -> float:
    return bob.peer.inside(lambda: bob.peer.state.durable.groups["all"].weight)


@pytest.mark.parametrize("weight", [pytest.param(1.0, id="S15")])
def test_what_a_member_gives_in_all_is_what_the_others_ever_put_in(fresh: Bob, weight: float) -> None:
    """A member sends shares of weight 1 again and again: the fourth is rejected, and the sender is charged.

    Three of the four members have put in 3 together. The weight that bob holds can be sent on, and no peer has to
    reject it.
    """
    for _ in range(TIMES):
        fresh.say(fresh.next(weight=weight))
    assert held(fresh) == pytest.approx(4.0)
    assert fresh.peer.counted("bad_weight") >= 1
    assert not fresh.peer.inside(lambda: fresh.peer.state.others.listens("ann")), "ten such shares pause the edge"


@pytest.mark.parametrize("weight", [pytest.param(0.5, id="S16")])
def test_who_has_no_room_says_so_and_charges_nobody(fresh: Bob, weight: float) -> None:
    """A share costs its sender nothing if bob has no room for it, and it is taken when there is room.

    bob already holds as much weight as members can give him, and another member may have caused that.
    """
    state = fresh.peer.state
    full = fresh.peer.inside(lambda: state.durable.groups["all"])

    def holding(weight: float) -> None:
        held = full.held.scaled(weight / float(full.held.weight))
        state.durable.groups["all"] = type(full)(held, out=full.out, into=state.durable.groups["all"].into)

    fresh.peer.inside(lambda: holding(9.9))
    with fresh.refuses("no_room"):
        assert fresh.say(fresh.next(weight=weight)) is None
    assert fresh.peer.inside(lambda: state.others.reputations.get("ann", Reputation()).recent) == ()
    fresh.peer.inside(lambda: holding(7.0))
    taken = fresh.taken()
    assert fresh.say(fresh.next(weight=weight)) is None
    assert fresh.taken() == taken + 1


def test_shares_of_exchanges_to_come_take_a_bounded_amount_of_memory() -> None:
    """A member sends shares for one future exchange after another: the process's peak memory stays within P11.

    The operating system itself reports the peak. All weight is accounted for, and a share beyond the last exchange of
    an averaging is rejected.
    """
    done = subprocess.run(
        [*python(), "-m", "tests.peer.runtime.hoarding"], capture_output=True, text=True, check=True, timeout=300
    )
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["taken"] == found["asked"]
    assert found["weight"] == pytest.approx(1.0 + found["given"])
    grown = found["peak"] - found["idle"]
    assert grown <= WAITING_BYTES + (64 << 20), f"{grown >> 20} MiB more than an idle peer"
    assert found["refused_exchange"] == ["epoch_too_early"] * 2
