"""Members that sign false verdicts about a living peer at full rate: no peer is declared dead on others' word alone.

The tests sample the status that each honest peer gives the accused on each of 500 ticks; `make soak` runs 3,000 ticks
for each of many seeds.
"""

from __future__ import annotations

import pytest

from fedpeer.gossip.credit import Credit
from tests.gossip.liars import LIES, lied_about
from tests.gossip.swim import burials

#: Ticks of lies.
TICKS = 500
#: Ticks within which a false death is taken back at 30 % loss (P8).
REFUTED = 200
#: Share of all samples in which the accused may be suspect: some verdicts are checked before their author is
#: ignored, and one in 500 ticks from then on; each check takes the time of a question and its answer.
SUSPECT = 0.05
#: Messages that an honest peer may send per tick besides its answers to the liars' own: 0.2 without liars.
SENT = 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "liars", "loss"),
    [
        (4, 1, 0.0),
        pytest.param(4, 1, 0.1, marks=pytest.mark.soak),
        pytest.param(8, 2, 0.0, marks=pytest.mark.soak),
        (8, 2, 0.1),
    ],
)
def test_false_verdicts_bury_nobody(count: int, liars: int, loss: float) -> None:
    world = lied_about(count, liars, LIES, seed=1, loss=loss, ticks=TICKS)
    assert world.thought["dead"] == 0
    assert world.share("suspect") < SUSPECT
    assert burials(world, but=world.false) == [], "nor is anybody else"
    assert max(world.sent[peer] for peer in world.honest) / TICKS - liars < SENT


@pytest.mark.slow
def test_without_marks_the_accused_is_suspect_most_of_the_time_and_not_dead_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sabotage of the test above: two rules together make it pass, and each alone does only a part."""
    monkeypatch.setattr(Credit, "believes", lambda *_: True)
    world = lied_about(4, 1, LIES, seed=1, loss=0.1, ticks=TICKS)
    assert world.thought["dead"] == 0
    assert world.share("suspect") > 4 * SUSPECT


@pytest.mark.slow
def test_at_thirty_percent_loss_a_false_death_is_taken_back() -> None:
    world = lied_about(4, 1, LIES, seed=1, loss=0.3, ticks=2 * TICKS)
    assert max(burials(world, but=world.false), default=0) <= REFUTED
    assert world.share("suspect") < 2 * SUSPECT


@pytest.mark.soak
@pytest.mark.parametrize(("count", "liars"), [(4, 1), (8, 2)])
@pytest.mark.parametrize("lies", [*((lie,) for lie in LIES if lie in ("dead", "suspect")), LIES])
def test_false_verdicts_over_many_seeds(count: int, liars: int, lies: tuple[str, ...]) -> None:
    for seed in range(6):
        for loss in (0.0, 0.1, 0.3):
            world = lied_about(count, liars, lies, seed=seed, loss=loss, ticks=3_000)
            lasted = burials(world, but=world.false)
            assert max(lasted, default=0) <= REFUTED, f"replay with seed={seed}, loss={loss}"
            assert loss > 0.1 or not lasted, f"replay with seed={seed}, loss={loss}"
            assert world.share("suspect") < 2 * SUSPECT, f"replay with seed={seed}, loss={loss}"


@pytest.mark.slow
def test_lies_do_not_hide_a_death() -> None:
    """All honest peers find a killed peer dead although liars deny, are silent and repeat old claims."""
    world = lied_about(8, 2, LIES, seed=2, loss=0.1, ticks=300)
    world.kill(world.victim)
    began = world.now
    while not all(world.peers[peer].status(world.victim) == "dead" for peer in world.honest[1:]):
        world.lie(1)
        assert world.now - began <= 2 * REFUTED
