"""P9: bad inputs that only a peer's memory can reveal, sent over TLS: order, generations, claims about other peers.

Each message is valid in itself; an earlier message or its signer makes it invalid. It is rejected by name: one count,
one line of the log, and a message to its sender; nothing durable changes, nothing is kept, and a good message is still
accepted afterwards. Ids are those of the table of bad inputs.
"""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpeer.config.contract import contract_digest
from fedpeer.gossip.claims import Claim
from fedpeer.gossip.incarnations import INCARNATION_AHEAD_MAX
from fedpeer.gossip.reductions import FORMS, Zstd
from fedpeer.gossip.transfers import WINDOW
from fedpeer.peer.node.channels import on_transfer
from fedpeer.peer.state.reputation import Reputation
from fedpeer.peer.wire.messages import Ack, Contract, Message, Pong, RejectMessage, RosterNews, ValueRequest
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import Roster, sign, to_bytes
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, sign_contract
from tests.peer.hostile import numbers
from tests.peer.runtime.bob import LIFE, Bob, bob_at
from tests.peer.runtime.whole import PATIENCE
from tests.sims import worlds

pytestmark = pytest.mark.slow

#: A number that nothing here reaches.
NEVER = 1000
#: Number of false verdicts: somewhat more than those after which their author is not believed.
FALSE = 8
Case = Callable[[Bob], None]


def telling(code: str) -> Callable[[Message], bool]:
    """Return a predicate for messages: whether one is a rejection with this code and the code's advice."""
    return lambda message: (
        isinstance(message, RejectMessage) and message.code == code and message.text.startswith(REJECTIONS[code].advice)
    )


def says(frame: Callable[[Bob], bytes], code: str, sender: str = "ann") -> Case:
    """Return a case in which bob, after a transfer of ann's, sends a rejection of a message that is valid in itself."""

    def case(bob: Bob) -> None:
        bob.gives()
        said = frame(bob)
        with bob.refuses(code), bob.tells(sender, telling(code)):
            assert bob.say(said, sender) is None

    return case


def repeated(bob: Bob) -> None:
    """A repeated transfer is acknowledged again, because the acknowledgement may have been lost."""
    said = bob.gives()
    with bob.refuses("repeated"), bob.tells("ann", lambda message: isinstance(message, Ack)):
        assert bob.say(said) is None


def twice_at_the_same_time(bob: Bob) -> None:
    """Only one of several equal transfers on different connections is taken."""
    said = bob.next()
    bob.pardon()
    before, taken = bob.peer.counted("repeated"), bob.taken()
    threads = [threading.Thread(target=bob.say, args=(said,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert bob.peer.counted("repeated") == before + 2
    assert bob.taken() == taken + 1


def absurd(bob: Bob) -> None:
    """An absurd share is rejected from the first share on, by comparison with the values with which bob begins."""
    says(lambda bob: bob.next(tail=numbers(*[1e9] * bob.party().length)), "implausible")(bob)


def out_of_reach(bob: Bob) -> None:
    """A share that is out of reach costs its sender nothing: another peer may have moved the sender's values."""
    says(lambda bob: bob.next(tail=numbers(*[10.0] * bob.party().length)), "out_of_reach")(bob)
    assert bob.peer.inside(lambda: bob.peer.state.others.reputations.get("ann", Reputation()).recent) == ()


def another_plan(bob: Bob) -> None:
    with bob.refuses("plan_mismatch", "differs there"), bob.tells("ann", telling("plan_mismatch")):
        assert bob.say(bob.hello(digest=bytes(32))) is None
    said = bob.next()
    with bob.refuses("plan_mismatch"), bob.tells("ann", telling("plan_mismatch")):
        assert bob.say(said) is None
    bob.peer.state.others["ann"].differs = b""
    assert bob.say(bob.hello()) is None


def another_file(bob: Bob) -> None:
    """Every difference between the two files is named."""
    text = bob.peer.state.setup.held.text.replace(b'"batch_size":5', b'"batch_size":6').replace(
        b'"seed":0', b'"seed":9'
    )
    named = "learning.batch_size is 5 here and 6 there; seed is 0 here and 9 there"
    with bob.refuses("plan_mismatch", named), bob.tells("ann", telling("plan_mismatch")):
        assert bob.say(bob.hello(contract=contract_digest(text))) is None
        assert bob.say(bob.framed(Contract(text=text))) is None
    assert bob.peer.inside(lambda: bob.peer.state.others["ann"].agreed) == set()  # the seed decides who is a neighbor
    text = bob.peer.state.setup.held.text.replace(b'"batch_size":5', b'"batch_size":7')
    digest = bob.peer.inside(lambda: bob.peer.state.digest_under(contract_digest(text), "all"))
    with bob.refuses("plan_mismatch", "learning.batch_size is 5 here and 7 there"):
        assert bob.say(bob.hello(contract=contract_digest(text), digest=digest)) is None
        assert bob.say(bob.framed(Contract(text=text))) is None
    assert bob.peer.inside(lambda: bob.peer.state.others["ann"].agreed) == {"all"}
    bob.gives()
    assert bob.say(bob.hello()) is None


def nested(shape: bytes, depth: int) -> Case:
    """Return a case with a contract that is nested this deep where bob's own has a setting."""

    def case(bob: Bob) -> None:
        before, after = shape.split(b"|")
        text = b'{"name":' + before * depth + b"1" + after * depth + b"}"
        with bob.refuses("bad_metadata", "nested deeper"), bob.tells("ann", telling("bad_metadata")):
            assert bob.say(bob.framed(Contract(text=text))) is None

    return case


def a_long_name(bob: Bob) -> None:
    """A difference between the files is named, whatever characters its name has and however long it is."""
    text = json.dumps({"\x1b[2J<script>" + "x" * 50_000: 1}).encode()
    with bob.refuses("plan_mismatch", "x..."), bob.tells("ann", telling("plan_mismatch")):
        assert bob.say(bob.framed(Contract(text=text))) is None
    assert "\x1b" not in bob.peer.line("plan_mismatch").text


def contract_by(bob: Bob, key: Ed25519PrivateKey, number: int = 1, **changed: Any) -> SignedContract:
    """Return the contract in force with other rounds, signed by this key."""
    text = json.loads(bob.peer.state.setup.held.text)
    text["learning"]["rounds"] += 7
    text |= changed
    public = key.public_key().public_bytes_raw()
    return sign_contract(
        SignedContract(authority=public, number=number, starts=NEVER, text=json.dumps(text).encode()), key
    )


def contract(code: str, made: Callable[[Bob], SignedContract]) -> Case:
    """Return a case with a contract that this authority did not sign and ann passes on: nothing of it is kept."""

    def case(bob: Bob) -> None:
        with bob.refuses(code), bob.tells("ann", telling(code)):
            assert bob.say(bob.framed(Contract(text=contract_bytes(made(bob))))) is None
        assert bob.peer.inside(lambda: bob.peer.state.contracts.signed) is None

    return case


def a_contract_that_cannot_be(bob: Bob) -> None:
    """The authority's own contract for another network is reported and not adopted, and costs no peer anything."""
    signed = contract_by(bob, bob.people.key, network="mlp,layers=64+5+10", seed=9)
    assert bob.say(bob.framed(Contract(text=contract_bytes(signed)))) is None
    line = bob.peer.line("contract")
    assert line.level == "error"
    assert "network is" in line.text
    assert "seed is 0 now and 9 then" in line.text
    assert bob.peer.inside(lambda: bob.peer.state.contracts.signed) is None


def an_earlier_process(bob: Bob) -> None:
    with bob.refuses("duplicate_peer"), bob.tells("ann", telling("duplicate_peer")):
        assert bob.say(bob.hello(generation=LIFE - 1)) is None


def claims(code: str, *made: Callable[[Bob], Claim]) -> Case:
    """Return a case with claims that ann passes on: the author of a wrong one cannot be informed, so ann is charged."""

    def case(bob: Bob) -> None:
        *before, bad = (make(bob) for make in made)
        assert bob.say(bob.ping(*before)) is None
        with bob.refuses(code):
            assert bob.say(bob.ping(bad)) is None

    return case


def accuses_him(state: Literal["suspect", "dead"]) -> Case:
    """Return a case in which ann accuses bob, who answers at once with a newer statement."""

    def case(bob: Bob) -> None:
        version = bob.version()

        def alive(message: Message) -> bool:
            said = message.claims if isinstance(message, Pong) else ()
            return any(each.about == "bob" and each.state == "alive" and each.version > version for each in said)

        with bob.refuses("refuted"), bob.tells("ann", alive):
            assert bob.say(bob.ping(bob.claim("bob", state, version))) is None

    return case


def an_author_of_false_verdicts(bob: Bob) -> None:
    """ann claims again and again that eve is dead, and each time eve claims that she is alive."""
    first = 100  # above the version of any earlier claim about her
    assert bob.say(bob.ping(bob.alive("eve", first))) is None
    for version in range(first, first + FALSE):
        assert bob.say(bob.ping(bob.claim("eve", "dead", version), bob.alive("eve", version + 1))) is None
    with bob.refuses("false_accuser"):
        assert bob.say(bob.ping(bob.claim("eve", "dead", first + FALSE))) is None
    assert bob.peer.state.membership._members["eve"].others == ()
    bob.peer.inside(bob.peer.state.membership._credit.marks.clear)


def roster(code: str, make: Callable[[Bob], Roster]) -> Case:
    def case(bob: Bob) -> None:
        news = make(bob)
        with bob.refuses(code):
            assert bob.say(bob.framed(RosterNews(number=news.number, text=to_bytes(news)))) is None

    return case


def elsewhere(bob: Bob) -> Roster:
    """Return a valid roster of another authority."""
    key = Ed25519PrivateKey.generate()
    new = replace(bob.people.roster, authority=key.public_key().public_bytes_raw(), number=NEVER)
    return sign(new, key)


def another_number(bob: Bob) -> None:
    """bob's own roster under a later number is rejected; if the number were believed, it would be read each time."""
    said = RosterNews(number=NEVER, text=to_bytes(bob.people.roster))
    with bob.refuses("bad_metadata", f"was sent as number {NEVER}"):
        assert bob.say(bob.framed(said)) is None


def accused(bob: Bob) -> Claim:
    return bob.claim("eve", "dead", NEVER)


def flipped(signature: bytes) -> bytes:
    return bytes([signature[0] ^ 1]) + signature[1:]


ONCE_INSIDE: dict[str, Case] = {
    "E07-another-key": claims("bad_signature", lambda bob: bob.signed(accused(bob), "cas")),
    "E07-empty": claims("bad_signature", lambda bob: replace(accused(bob), signature=bytes(64))),
    "E07-signature-bit": claims(
        "bad_signature", lambda bob: replace(accused(bob), signature=flipped(accused(bob).signature))
    ),
    "E07-text-bit": claims("bad_signature", lambda bob: replace(accused(bob), version=NEVER ^ 1)),
    "E07-contract": contract("bad_signature", lambda bob: replace(contract_by(bob, bob.people.key), number=NEVER)),
    "E16-contract": contract("foreign_roster", lambda bob: contract_by(bob, Ed25519PrivateKey.generate())),
    "C12": a_contract_that_cannot_be,
    "E07-roster": roster("bad_signature", lambda bob: replace(bob.people.roster, number=NEVER)),
    "E10": repeated,
    "E10-at-the-same-time": twice_at_the_same_time,
    "E11": says(lambda bob: bob.next(ahead=WINDOW), "sequence_jump"),
    "E11-far": says(lambda bob: bob.next(seq=2**63 - 1), "sequence_jump"),
    "E12": says(lambda bob: bob.framed(ValueRequest(group="all"), "dan", incarnation=1), "stale_incarnation", "dan"),
    "E12-hello": says(lambda bob: bob.hello("dan", incarnation=1), "stale_incarnation", "dan"),
    "E13": says(lambda bob: bob.hello("dan", incarnation=3 + INCARNATION_AHEAD_MAX), "incarnation_jump", "dan"),
    "E15": an_earlier_process,
    "E16": roster("foreign_roster", elsewhere),
    "M02-contract": nested(b"[|]", 962),
    "M02-contract-of-mappings": nested(b'{"a":|}', 962),
    "M02-contract-as-deep-as-it-goes": nested(b"[|]", 32_000),
    "M06-number-of-a-roster": another_number,
    "S03": another_plan,
    "S03-file": another_file,
    "S03-long-name": a_long_name,
    "S08": says(lambda bob: bob.next(ahead=-1, weight=0.5), "sequence_reused"),
    "S09": absurd,
    "S17": out_of_reach,
    "S10": says(lambda bob: bob.next(round=0), "stale_epoch"),
    "S11": says(lambda bob: bob.next(round=bob.peer.state.setup.federation.learning.rounds + 2), "epoch_too_early"),
    "S14": says(lambda bob: bob.next(ahead=1), "early"),
    "R01-suspect": accuses_him("suspect"),
    "R01-dead": accuses_him("dead"),
    "R02-of-him": claims("stale_incarnation", lambda bob: bob.claim("bob", "dead", bob.version() - 1)),
    "R02": claims("stale_incarnation", lambda bob: bob.alive("eve", 2), lambda bob: bob.claim("eve", "dead", 1)),
    "R18": an_author_of_false_verdicts,
    "R03": claims("unknown_peer", lambda bob: bob.claim("stranger", "dead", 1)),
}


@pytest.mark.parametrize("case", ONCE_INSIDE.values(), ids=ONCE_INSIDE)
def test_refused_by_what_was_said_before(bob: Bob, case: Case) -> None:
    case(bob)


@pytest.mark.parametrize("words", [pytest.param("\x1b[2J it is full of stars", id="M09")])
def test_a_mistake_of_ours_refuses_the_message_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The error is charged to the sender and logged with a traceback only the first time; the peer's state stays."""
    with bob_at(tmp_path) as bob:
        said, before = bob.next(), bob.peer.durable(generation=0)

        def fails(*given: Any) -> bool:
            on_transfer(*given)
            raise RuntimeError(words)

        monkeypatch.setattr("fedpeer.peer.node.dispatch.on_transfer", fails)
        for count in (1, 2):
            since = len(bob.peer.lines)
            with bob.tells("ann", telling("internal_error")):
                assert bob.say(said) is None
            line = bob.peer.line("failed_on_message", since)
            assert line.text.startswith(
                "RuntimeError in tests/peer/runtime/test_bad_order.py, line ".replace("tests/", "")
            )
            assert "ann" in line.text
            assert "\x1b" not in str(line)
            assert ("traceback" in line.fields) == (count == 1)
            assert bob.peer.counted("internal_error") == count
            assert len(bob.peer.state.others.reputations["ann"].recent) == count
            assert bob.peer.durable(generation=0) == before
            assert bob.say(bob.hello()) is None
            bob.peer.afresh()
        monkeypatch.undo()
        assert bob.say(said) is None
        assert bob.taken() == 1


def test_a_compressed_bomb_grows_into_nothing(tmp_path: Path) -> None:
    """Compressed zeros are rejected before they take memory, in a federation in which transfers are compressed.

    The test sends 64 MB of zeros in 2 kB of zstd, and 8 MB in as few bytes as an honest share may have.
    """
    models = {
        "all": {"neurons": {"input": "all", "hidden1": 1}, "members": ["ann", "bob", "cas", "dan"]},
        "closed": {"neurons": {"hidden1": 1}, "members": ["bob", "eve"]},
    }
    wire = {"gossip__gather": 3600.0, "gossip__wire": "float32/zstd"}

    def zipped(value_D: torch.Tensor) -> bytes:
        return bytes(Zstd(FORMS["float32"](), 1).pack(value_D, np.random.default_rng(0)).numpy())

    with bob_at(
        tmp_path, worlds.federation(network="mlp:64+3+10", partial_models=models, simulation__peers=None, **wire)
    ) as bob:
        usual = zipped(torch.full((bob.party().length,), 2.0**-8))
        for zeros, code in ((1 << 24, "wrong_shape"), (1 << 21, "tail_length_wrong")):
            tail = zipped(torch.zeros(zeros))
            tracemalloc.start()
            refused = bob.say(bob.next(form="float32/zstd", shape=[len(tail)], tail=tail))
            grown = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert refused is not None
            assert refused.code == code
            assert grown < 4 << 20
        assert bob.say(bob.next(form="float32/zstd", shape=[len(usual)], tail=usual)) is None
        assert bob.taken() == 1


@pytest.mark.parametrize("number", [1, 2], ids=["an-earlier-one", "the-same"])
def test_a_roster_that_is_no_news_changes_nothing_and_costs_nothing(bob: Bob, number: int) -> None:
    """An honest peer may pass on a roster that has been replaced; its text is not even read."""
    his = bob.people.roster
    stale = his if number == 2 else sign(replace(his, number=1, entries=his.entries[:1]), bob.people.key)
    assert stale.number <= his.number
    bob.pardon()
    durable, refusals = bob.peer.durable(), bob.peer.inside(lambda: bob.peer.process.status.as_json()["refusals"])
    for text in (to_bytes(stale), b"[" * 100_000):
        assert bob.say(bob.framed(RosterNews(number=stale.number, text=text))) is None
    assert bob.peer.inside(lambda: bob.peer.state.peer_groups.roster) == his
    assert bob.peer.durable() == durable
    assert bob.peer.inside(lambda: bob.peer.process.status.as_json()["refusals"]) == refusals


@pytest.mark.parametrize("weight", [5e-324, 2.2e-308], ids=["S13-subnormal-weight", "S13-smallest-weight"])
def test_weights_that_are_hardly_there_are_taken_exactly(bob: Bob, weight: float) -> None:
    """A share with such a weight is taken, and the estimate is finite afterwards."""
    taken = bob.taken()
    assert bob.say(bob.next(weight=weight, tail=numbers(*[0.0] * bob.party().length))) is None
    assert bob.taken() == taken + 1
    assert bob.peer.inside(lambda: bool(bob.peer.state.durable.estimate_D("all").isfinite().all()))


@pytest.mark.parametrize("value", [1e-40, -0.0], ids=["S13-subnormal", "S13-minus-zero"])
def test_numbers_that_look_odd_are_taken(bob: Bob, value: float) -> None:
    taken, before = bob.taken(), bob.peer.inside(lambda: bob.peer.process.status.as_json()["refusals"])
    assert bob.say(bob.next(tail=numbers(*[value] * bob.party().length))) is None
    assert bob.taken() == taken + 1
    assert bob.peer.inside(lambda: bob.peer.process.status.as_json()["refusals"]) == before
