"""What a member does with its right to give: loads a running peer with weight that nobody has, or with what waits.

The peer takes what an honest member could have given, refuses the rest by name, and can still be averaged with.
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

#: How often the member gives.
TIMES = 172


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Bob]:
    """bob, to whom nothing was given yet."""
    with bob_at(tmp_path) as running:
        yield running


def held(bob: Bob) -> float:
    return bob.peer.inside(lambda: bob.peer.state.durable.groups["all"].weight)


@pytest.mark.parametrize("weight", [pytest.param(1.0, id="S15")])
def test_what_a_member_gives_in_all_is_what_the_others_ever_put_in(fresh: Bob, weight: float) -> None:
    """A share of weight 1 again and again: of four members three have put in 3, so the fourth share is refused, the
    giver is charged, and what is held can be given without anybody having to refuse it."""
    for _ in range(TIMES):
        fresh.say(fresh.next(weight=weight))
    assert held(fresh) == pytest.approx(4.0)
    assert fresh.peer.counted("bad_weight") >= 1
    assert not fresh.peer.inside(lambda: fresh.peer.state.others.listens("ann")), "ten such shares pause the edge"


@pytest.mark.parametrize("weight", [pytest.param(0.5, id="S16")])
def test_who_has_no_room_says_so_and_charges_nobody(fresh: Bob, weight: float) -> None:
    """cas gives, and bob holds as much as members can give it: another may have done that, so it costs nothing, and the
    share is taken when there is room."""
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
    """A member gives for one exchange after the other, all of them to come: the operating system's own peak of the
    process stays within P11, and all weight is there. Beyond the last exchange of an averaging it is refused."""
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
