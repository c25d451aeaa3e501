"""P9: bad inputs that a running peer recognizes on their arrival, sent over TLS.

`bob` is a complete peer except that it is not forked. Each input is rejected by name: one count, one line of the log,
and a sentence in the answer; nothing durable changes, nothing is kept, and a good message is still accepted afterwards.
Ids are those of the table of bad inputs.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from fedpeer.peer.runtime.identity import joining_context
from fedpeer.peer.runtime.reasons import tls_reason
from fedpeer.peer.state.reputation import SUSPICIOUS_MAX
from fedpeer.peer.wire.messages import RejectMessage
from fedpeer.peer.wire.rejections import REJECTIONS
from tests.peer.hostile import HOSTILE, Hostile, numbers
from tests.peer.runtime.bob import Bob, answer
from tests.peer.runtime.people import SPOILT
from tests.peer.runtime.port import request
from tests.peer.runtime.whole import PATIENCE

Case = Callable[[Bob], None]


def told(refused: RejectMessage | None, code: str) -> None:
    """Check that the answer has the code and the code's advice."""
    assert refused is not None
    assert refused.code == code
    assert refused.text.startswith(REJECTIONS[code].advice)


# --------------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("row", sorted({bad.id[:3] for bad in HOSTILE}))
def test_bytes_are_refused_in_the_answer(bob: Bob, row: str) -> None:
    for bad in HOSTILE:
        if bad.id[:3] == row:
            sender = "dan" if row == "S12" else "ann"
            with named(bad), bob.refuses(bad.code):
                told(bob.say(bad.build(bob.party(sender)), sender), bad.code)


@contextmanager
def named(bad: Hostile) -> Iterator[None]:
    """Name the bad input in a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"bad input {bad.id}")
        raise


# --------------------------------------------------------------------------------------------------- who, and how much


def spoilt(name: str) -> Case:
    make, here, there = SPOILT[name]

    def case(bob: Bob) -> None:
        wrong = make(bob.people, f"peer-{name}")
        with bob.refuses("tls_refused", here), pytest.raises(ssl.SSLError) as caught, bob.line(bob.tls(wrong)) as line:
            line.recv(1)  # a client that has sent nothing receives the reason; else a reset may come first
        assert any(words in (tls_reason(caught.value) or "") for words in there.split("|"))

    return case


def plain_http(bob: Bob) -> None:
    with bob.refuses("tls_refused", "plain HTTP"), socket.create_connection(bob.address, PATIENCE) as line:
        line.sendall(request(bob.ping()))


def no_certificate(bob: Bob) -> None:
    nobody = joining_context(bob.people.roster.by_id["bob"].key)
    with bob.refuses("tls_refused", "no certificate"), pytest.raises(ssl.SSLError) as caught, bob.line(nobody) as line:
        line.recv(1)
    assert tls_reason(caught.value) == "the other side requires a certificate, and none was presented"


def nobody_here(bob: Bob) -> None:
    stranger = bob.people.identity("fay", admitted=False)
    with bob.refuses("unknown_peer", "is not in roster"), bob.line(bob.tls(stranger)) as line, suppress(OSError):
        line.sendall(request(bob.ping()))
        assert line.recv(1) == b"", "the connection is ended, and nothing is answered"


def broken_off(bob: Bob) -> None:
    """Break off a connection, as a peer does that pauses while it connects."""
    with bob.refuses("handshake_cut"):
        socket.create_connection(bob.address, PATIENCE).close()


def asks(said: bytes, code: str) -> Case:
    """Return a case with a request that no peer sends; its announced body is not sent, and bob does not wait for it."""

    def case(bob: Bob) -> None:
        with bob.refuses(code):
            told(bob.ask(said), code)

    return case


def cut_off(sent: int) -> Case:
    def case(bob: Bob) -> None:
        with bob.refuses("body_truncated"), bob.line() as line:
            line.sendall(request(bob.ping())[: sent - len(bob.ping())])

    return case


def too_slow(bob: Bob) -> None:
    with bob.limits(floor_s=0.2), bob.refuses("body_too_slow"):
        told(bob.ask(request(b"", content_length="30") + b"FDPR"), "body_too_slow")


def at_once(bob: Bob) -> None:
    said = request(bob.ping())
    with bob.limits(requests_at_once=1), bob.refuses("too_many_requests"), bob.line() as line:
        line.sendall(said[:-1])
        bob.peer.wait(bob.entered("ann"))
        told(bob.ask(said), "too_many_requests")
        line.sendall(said[-1:])
        assert answer(line) is None


def a_second(bob: Bob) -> None:
    with bob.refuses("too_many_requests"), bob.limits(requests_per_second=1.0):
        assert bob.say(bob.ping()) is None
        told(bob.say(bob.ping()), "too_many_requests")


def resting(bob: Bob) -> None:
    said = bob.next(tail=numbers(*[float("nan")] * bob.party().length))
    bob.pardon()
    for _ in range(SUSPICIOUS_MAX):
        told(bob.say(said), "not_finite")
    durable = bob.peer.durable()
    told(bob.say(bob.ping()), "too_many_requests")
    assert bob.peer.durable() == durable
    bob.pardon()


AT_THE_DOOR: dict[str, Case] = {
    "T01-plain-http": plain_http,
    "T01-no-certificate": no_certificate,
    **{f"T01-{name}": spoilt(name) for name in SPOILT},
    "T02": nobody_here,
    "T04": asks(request(b"", content_length="999999999999"), "body_too_large"),
    "T05-no-length": asks(request(b"", content_length=None), "body_too_large"),
    "T05-chunked": asks(request(b"5\r\nFDPR", content_length=None, transfer_encoding="chunked"), "body_too_large"),
    "T06-nothing": cut_off(0),
    "T06-header": cut_off(5),
    "T06-metadata": cut_off(25),
    "T07": too_slow,
    "T08-at-once": at_once,
    "T08-a-second": a_second,
    "T08-resting": resting,
    "T09-path": asks(request(b"", line="POST /v1/other HTTP/1.1"), "unknown_route"),
    "T09-method": asks(request(b"", line="GET /v1/message HTTP/1.1"), "unknown_route"),
    "T09-type": asks(request(b"", content_type="text/html"), "unknown_route"),
    "T10-gzip": asks(request(b"", content_encoding="gzip"), "unknown_route"),
    "T10-expect": asks(request(b"", expect="100-continue"), "unknown_route"),
    "T11": broken_off,
}


@pytest.mark.parametrize("case", AT_THE_DOOR.values(), ids=AT_THE_DOOR)
def test_refused_at_the_door(bob: Bob, case: Case) -> None:
    case(bob)
