"""The outbox: effects come out in the order in which they went in, and none passes a save that is not durable yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpeer.peer.state.events import Effect, Note, Persist, Send
from fedpeer.peer.state.saving import WAITING_MAX, Outbox
from fedpeer.peer.wire.consensus_messages import HeartbeatReply, Progress
from fedpeer.peer.wire.messages import ConsensusMessage


def effect(letter: str, number: int) -> Effect:
    kinds = {"e": "entry", "s": "snapshot"}
    return Persist(kinds[letter], number) if letter in kinds else Note("info", "said", str(number))  # type: ignore[arg-type]


@given(st.lists(st.lists(st.sampled_from("esn"), max_size=6), max_size=8), st.data())
def test_nothing_is_said_before_the_save_that_contains_it(steps: list[list[str]], data: st.DataObject) -> None:
    outbox = Outbox()
    options, saved, said = list[Effect](), list[Persist](), list[Effect]()

    def carry_out(freed: list[Effect]) -> None:
        for each in freed:
            assert not isinstance(each, Persist)
            before = [other for other in options[: options.index(each)] if isinstance(other, Persist)]
            assert saved[: len(before)] == before, "everything asked for before it is durable"
            said.append(each)

    for number, step in enumerate(steps):
        effects = [effect(letter, 10 * number + place) for place, letter in enumerate(step)]
        options += effects
        carry_out(outbox.put(effects))
        while batch := outbox.batch():
            if not data.draw(st.booleans()):
                break
            assert batch == outbox.batch(), "the same again until it is saved"
            assert len(batch) == 1 or {each.kind for each in batch} == {"entry"}
            saved += batch
            carry_out(outbox.saved())
    while batch := outbox.batch():
        saved += batch
        carry_out(outbox.saved())
    assert outbox.empty
    assert saved == [each for each in options if isinstance(each, Persist)]
    assert said == [each for each in options if not isinstance(each, Persist)]


def test_what_waits_is_saved_in_one_go_up_to_a_snapshot() -> None:
    outbox = Outbox()
    effects = [effect(letter, number) for number, letter in enumerate("neneesen")]
    assert outbox.put(effects) == effects[:1]
    assert outbox.batch() == (effects[1], effects[3], effects[4])
    assert outbox.saved() == [effects[2]]
    assert outbox.batch() == (effects[5],)
    assert outbox.saved() == []
    assert outbox.batch() == (effects[6],)
    assert outbox.saved() == [effects[7]]


def test_entries_that_come_during_a_save_wait_for_the_next() -> None:
    outbox = Outbox()
    first, second, said = effect("e", 1), effect("e", 2), effect("n", 3)
    outbox.put([first])
    assert outbox.batch() == (first,)
    outbox.put([said, second])
    assert outbox.batch() == (first,)
    assert outbox.saved() == [said]
    assert outbox.batch() == (second,)


def test_an_outbox_is_full_in_time() -> None:
    outbox = Outbox()
    outbox.put([effect("n", number) for number in range(2 * WAITING_MAX)])
    assert not outbox.full, "nothing waits for a save"
    outbox.put([effect("e", 0), *(effect("n", number) for number in range(WAITING_MAX - 1))])
    assert outbox.full


def beat(round: int, term: int = 1, to: str = "peer2", incarnation: int = 1) -> Send:
    return Send(
        to,
        ConsensusMessage(group="g", message=HeartbeatReply(term, Progress(round))),
        incarnation,
        1,
        stays_true=("g", "lead", term),
    )


def test_while_a_save_is_under_way_a_heartbeat_is_said_as_it_was_said_before() -> None:
    outbox = Outbox()
    effects = [effect("e", 1), beat(1)]
    assert outbox.again(effects) == ([], effects), "nothing has left yet"
    assert outbox.put(effects) == []
    assert outbox.again([beat(1)]) == ([], [beat(1)])
    outbox.batch()
    assert outbox.saved() == [beat(1)]
    assert outbox.again([beat(2)]) == ([], [beat(2)]), "nothing holds it back"
    note = effect("n", 2)
    again, rest = outbox.again([effect("e", 3), beat(2), note])
    assert (again, rest) == ([beat(1)], [effect("e", 3), note])
    assert outbox.put(rest) == []
    assert outbox.again([beat(2), note]) == ([beat(1)], [note])
    for other in (beat(2, term=2), beat(2, to="peer3"), beat(2, incarnation=2)):
        assert outbox.again([other]) == ([], [other]), "that was never said"
