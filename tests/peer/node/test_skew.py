"""The two rules that bound the skew of round numbers, in the smallest model that shows their purpose.

Three peers have a round number each, and each knows the last number that it received from each other peer. At any
moment any of them may begin a round, if the first rule allows it; receive the present number of another peer; or catch
up by the second rule. A cut is a stretch of time in which some peers receive nothing, so all cuts of all kinds and
lengths are among the orders of these events. All reachable states are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest

from fedpeer.peer.node.skew import followed, latest

#: Number of rounds in the model: enough for two peers to leave the third behind by more than one.
ROUNDS = 4
PEERS = range(3)

#: Round of each peer, and for each peer the rounds that it has received from each peer (in its own place: its round).
State = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
Rule = Callable[[list[int]], int]
START: State = ((1, 1, 1), ((1, 1, 1),) * 3)


def others(state: State, me: int) -> list[int]:
    return [state[1][me][each] for each in PEERS if each != me]


def at(state: State, me: int, round: int) -> State:
    rounds = tuple(round if each == me else state[0][each] for each in PEERS)
    received = tuple(
        tuple(round if each == row == me else known for each, known in enumerate(state[1][row])) for row in PEERS
    )
    return rounds, received


def hears(state: State, me: int, other: int) -> State:
    rounds, received = state
    row = (*received[me][:other], rounds[other], *received[me][other + 1 :])
    return rounds, (*received[:me], row, *received[me + 1 :])


def steps(state: State, may: Rule, follow: Rule) -> Iterator[State]:
    for me in PEERS:
        round = state[0][me]
        if round < ROUNDS and round + 1 <= may(others(state, me)):
            yield at(state, me, round + 1)
        if round < follow(others(state, me)):
            yield at(state, me, min(follow(others(state, me)) + 1, ROUNDS))
    for me, other in permutations(PEERS, 2):
        if state[1][me][other] != state[0][other]:
            yield hears(state, me, other)


def reached(may: Rule = latest, follow: Rule = followed) -> set[State]:
    seen, new = {START}, [START]
    while new:
        for state in steps(new.pop(), may, follow):
            if state not in seen:
                seen.add(state)
                new.append(state)
    return seen


def ahead(state: State) -> int:
    """Return how far the largest of the three numbers is ahead of the second largest."""
    first, second, _ = sorted(state[0], reverse=True)
    return first - second


@pytest.fixture(scope="module")
def states() -> frozenset[State]:
    """Return all states that are reached by both rules."""
    return frozenset(reached())


@pytest.mark.slow
def test_nobody_is_ever_more_than_one_round_ahead_of_everybody_else(states: frozenset[State]) -> None:
    assert max(map(ahead, states)) == 1


@pytest.mark.slow
def test_without_the_first_rule_a_peer_alone_runs_as_far_ahead_as_it_likes() -> None:
    assert max(map(ahead, reached(may=lambda rounds: ROUNDS))) == ROUNDS - 1


def healed(rounds: tuple[int, ...]) -> tuple[int, ...]:
    """Let those that can go on do so, the one furthest behind first, while all receive from one another at once."""
    for _ in range(2 * ROUNDS):
        state = rounds, (rounds,) * len(rounds)
        me = min(PEERS, key=lambda each: (rounds[each], each))
        round, known = rounds[me], others(state, me)
        if round < followed(known):
            state = at(state, me, min(followed(known) + 1, ROUNDS))
        elif round < ROUNDS and round + 1 <= latest(known):
            state = at(state, me, round + 1)
        rounds = state[0]
    return rounds


@pytest.mark.slow
def test_from_every_state_all_come_to_the_last_round_once_they_hear_one_another(states: frozenset[State]) -> None:
    """What a peer heard before does not matter here, because each now hears the present numbers of the others."""
    assert {healed(rounds) for rounds, _ in states} == {(ROUNDS,) * 3}


def test_a_stricter_first_rule_would_block_all() -> None:
    """No peer could begin a round that no other peer is in: all would wait for one another at the start."""
    strict: Rule = lambda rounds: max(rounds)  # noqa: E731
    assert reached(may=strict) == {START}


@pytest.mark.parametrize(("rounds", "expected"), [((), 0), ((7,), 7), ((7, 3), 3), ((3, 7, 7), 7), ((9, 2, 4), 4)])
def test_two_are_followed_or_the_only_one(rounds: tuple[int, ...], expected: int) -> None:
    assert followed(rounds) == expected


def test_one_peer_that_says_anything_moves_nobody_where_two_others_are_there() -> None:
    for honest in product(range(1, 5), repeat=2):
        assert followed((10**6, *honest)) == max(honest)


@pytest.mark.parametrize("others", range(4, 16))
def test_less_than_a_third_of_the_others_move_nobody(others: int) -> None:
    liars = max(1, math.ceil(others / 3) - 1)
    assert followed([10**6] * liars + [7] * (others - liars)) == 7
    assert followed([9] * (liars + 1) + [7] * (others - liars - 1)) == 9
