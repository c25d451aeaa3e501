"""Enrolment of one more peer: the token, the invitation's rules with an injected clock, and all of it over real TLS."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fedpeer.config.address import PeerUrl
from fedpeer.config.peer_file import DataSettings
from fedpeer.peer.runtime.announce import announce
from fedpeer.peer.runtime.authority import Authority, EnrolmentError, change_roster, open_authority, sign_next
from fedpeer.peer.runtime.certificates import pem, request
from fedpeer.peer.runtime.contract_file import read_contract
from fedpeer.peer.runtime.enrolment import INVITED, LATE_MAX, confirm, fetch_model, invite, join_federation, listening
from fedpeer.peer.runtime.identity import joining_context, load_identity, read_roster, server_context
from fedpeer.peer.runtime.invitation import (
    ADDRESSES_MAX,
    ALL_DOUBLE,
    DELAY_MAX_S,
    DELAY_S,
    Admission,
    Denied,
    Invitation,
    Token,
    WrongSecrets,
    read_admission,
)
from fedpeer.peer.runtime.peer_folder import make_federation, new_folder, new_peer, write_peer
from fedpeer.peer.runtime.roster_history import read_history
from fedpeer.peer.wire.roster import RosterError, expel, sign
from fedpeer.peer.wire.signed_contract import SignedContract, contract_bytes, sign_contract
from tests.peer.frames import POLICY
from tests.peer.runtime.port import Port, serving

ADDRESS = "https://127.0.0.1:7405"
SECRET = bytes(range(16))
#: Seconds after which an invitation counts as hanging; joining takes milliseconds.
PATIENCE = 10.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    data = DataSettings.model_validate("simulation:1")
    peers = [new_peer(f"peer{n}", "127.0.0.1", 7400 + n, data, "127.0.0.1") for n in (1, 2)]
    make_federation(tmp_path / "wards", "wards", "name: wards\n", peers)
    return open_authority(tmp_path / "wards")


def invitation(authority: Authority, expires: float = 60.0) -> Invitation:
    return Invitation(authority, "peer5", ADDRESS, ("everyone",), SECRET, expires)


def options(key: Ed25519PrivateKey | None = None, **changes: Any) -> bytes:
    wanted = pem(request(key or Ed25519PrivateKey.generate(), "peer5")).decode()
    return json.dumps({"secret": SECRET.hex(), "request": wanted, **changes}).encode()


def status(answer: bytes | Denied) -> int:
    return answer.status if isinstance(answer, Denied) else 200


# -------------------------------------------------------------------------------------------------------------- tokens


def token(authority: Authority, listener: str = "[::1]:7400") -> Token:
    return Token(SECRET, authority.roster.authority, "peer5", listener)


def test_a_token_is_one_word_and_says_all(authority: Authority) -> None:
    made = token(authority)
    assert Token.read(str(made)) == made
    assert Token.read(f" {str(made)[:30]}\n{str(made)[30:]} ") == made, "a terminal may have broken the line"
    assert not set(str(made)) & set(" '\"$&\\")


def test_a_token_with_a_wrong_or_missing_letter_is_said_to_be_so(authority: Authority) -> None:
    word = str(token(authority))
    spoiled = [word[:-1], word[:60], "", "fedpeer-", word + "AAAA", "ünicode"]
    spoiled += [word[:n] + ("A" if word[n] != "A" else "B") + word[n + 1 :] for n in range(8, len(word) - 1, 7)]
    for each in spoiled:
        with pytest.raises(EnrolmentError, match="not a whole token"):
            Token.read(each)


# --------------------------------------------------------------------------------------------------------- the decision


def test_an_invitation_is_for_one(authority: Authority) -> None:
    open_one, key = invitation(authority), Ed25519PrivateKey.generate()
    answer = open_one.answer(options(key), 1.0)
    assert isinstance(answer, bytes)
    admission = read_admission(answer, token(authority), key)
    assert open_one.answer(options(), 2.0) == Denied(410, "This invitation has already been used; ask for another one.")
    assert admission.roster == authority.roster == open_one.taken
    entry = authority.roster.by_id["peer5"]
    assert (entry.address, entry.models, entry.key) == (ADDRESS, ("everyone",), key.public_key().public_bytes_raw())
    assert authority.roster.number == 2
    for peer in ("peer1", "peer2"):
        assert read_roster(authority.folder / peer / "roster.json") == authority.roster


def test_who_joins_gets_the_rosters_before_and_copies_beside_the_authority_have_them(authority: Authority) -> None:
    """A consensus group goes through each of these rosters; a damaged file gives one sentence."""
    first, key = authority.roster, Ed25519PrivateKey.generate()
    change_roster(authority, lambda roster, by: expel(roster, "peer2", by))
    second = authority.roster
    answer = invitation(authority).answer(options(key), 1.0)
    assert isinstance(answer, bytes)
    assert read_admission(answer, token(authority), key).earlier == (first, second)
    for folder in (authority.folder, authority.folder / "peer1"):
        assert read_history(folder / "earlier-rosters.json", first.authority) == (first, second)
    path = authority.folder / "earlier-rosters.json"
    for damaged, words in ((b"{}", "holds no rosters"), (path.read_bytes().replace(b"peer1", b"peer9"), "signature")):
        path.write_bytes(damaged)
        with pytest.raises(RosterError, match=f"earlier-rosters.json.*{words}.*remove it"):
            read_history(path, first.authority)


def test_of_the_rosters_before_the_newest_are_kept(authority: Authority) -> None:
    made = [change_roster(authority, lambda old, by: sign(replace(old, number=old.number + 1), by)) for _ in range(12)]
    assert read_history(authority.folder / "earlier-rosters.json", authority.roster.authority) == tuple(made[-9:-1])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (options(secret=bytes(16).hex()), 403),
        (options(secret=""), 403),
        (options(secret=SECRET.hex()[:-2]), 403),
        (options(secret="no hex"), 400),
        (options(secret=5), 400),
        (options(request=""), 400),
        (options(request="-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"), 400),
        (b"", 400),
        (b"[]", 400),
        (b"[" * 10_000, 400),
    ],
)
def test_what_is_no_right_request_lets_nobody_in(authority: Authority, body: bytes, expected: int) -> None:
    before = authority.roster
    open_one = invitation(authority)
    assert status(open_one.answer(body, 1.0)) == expected
    assert authority.roster == before
    assert status(open_one.answer(options(), 1.0)) == 200, "and the right one still can come"


def _raw(wanted: x509.CertificateSigningRequest) -> bytes:
    key = wanted.public_key()
    assert isinstance(key, Ed25519PublicKey)
    return key.public_bytes_raw()


def test_a_request_has_to_be_signed_by_the_ed25519_key_in_it(authority: Authority) -> None:
    key = generate_private_key(65537, 2048)
    rsa = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    one, two = (request(Ed25519PrivateKey.generate(), "peer5") for _ in range(2))
    der = one.public_bytes(Encoding.DER).replace(_raw(one), _raw(two))  # one peer's key under another's signature
    mixed = pem(x509.load_der_x509_csr(der))
    for wrong in (pem(rsa), mixed):
        assert status(invitation(authority).answer(options(request=wrong.decode()), 1.0)) == 400


def test_an_expired_invitation_lets_nobody_in(authority: Authority) -> None:
    assert status(invitation(authority, expires=60.0).answer(options(), 60.0)) == 410
    assert status(invitation(authority, expires=60.0).answer(options(), 59.9)) == 200


def test_guessing_does_not_end_an_invitation(authority: Authority) -> None:
    """Wrong secrets do not end an invitation; otherwise anybody that reaches the port could end it.

    The right secret is accepted after any number of wrong ones, from whatever address they came.
    """
    open_one = invitation(authority)
    for guess in range(500):
        secret = guess.to_bytes(16, "big").hex()
        assert status(open_one.answer(options(secret=secret), 1.0, f"10.0.{guess % 3}.{guess % 200}")) == 403
    assert status(open_one.answer(options(), 1.0, "10.0.0.0")) == 200
    assert open_one.wrong.count == 500


def test_answers_to_wrong_secrets_are_kept_back_for_longer_and_longer() -> None:
    wrong = WrongSecrets()
    one = [wrong.once_more("10.0.0.1") for _ in range(8)]
    assert one == [DELAY_S * 2**n if DELAY_S * 2**n < DELAY_MAX_S else DELAY_MAX_S for n in range(8)]
    assert wrong.once_more("10.0.0.2") == DELAY_S, "each address has its own"
    for number in range(ALL_DOUBLE):
        wrong.once_more(f"10.0.1.{number}")
    assert wrong.once_more("10.0.0.3") == 2 * DELAY_S, "until there are many"
    for number in range(100_000):
        assert wrong.once_more(f"10.1.{number}") <= DELAY_MAX_S
    assert len(wrong._of) == ADDRESSES_MAX


def test_every_wrong_secret_has_the_same_answer_and_is_compared_whole(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer does not reveal how much of a guess was right: there is one comparison, in constant time."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("fedpeer.peer.runtime.invitation.hmac", SimpleNamespace(compare_digest=compare))
    answers = set()
    for right in range(16):
        guess = SECRET[:right] + bytes([SECRET[right] ^ 1]) + SECRET[right + 1 :]
        answers.add(invitation(authority).answer(options(secret=guess.hex()), 1.0))
        assert compared.pop() == (guess, SECRET)
    assert len(answers) == 1
    assert not compared


def test_a_revoked_key_is_not_let_in_again(authority: Authority) -> None:
    key = Ed25519PrivateKey.generate()
    assert status(invitation(authority).answer(options(key), 1.0)) == 200
    change_roster(authority, lambda roster, by: expel(roster, "peer5", by))
    assert status(invitation(authority).answer(options(key), 1.0)) == 409
    assert status(invitation(authority).answer(options(), 1.0)) == 200


@pytest.mark.parametrize("name", ["certificate", "authority", "roster", "federation"])
def test_an_answer_is_held_against_the_token_and_our_key(authority: Authority, tmp_path: Path, name: str) -> None:
    """An answer is rejected if any part of it is spoiled or comes from another federation."""
    make_federation(tmp_path / "other", "wards", "name: wards\n", [])
    other, key = open_authority(tmp_path / "other"), Ed25519PrivateKey.generate()
    answers = []
    for each in (authority, other):
        answer = invitation(each).answer(options(key), 1.0)
        assert isinstance(answer, bytes)
        answers.append(json.loads(answer))
    mixed = {**answers[0], name: answers[1][name] if name != "federation" else None}
    with pytest.raises(EnrolmentError, match="cannot be used"):
        read_admission(json.dumps(mixed).encode(), token(authority), key)
    with pytest.raises(EnrolmentError, match="cannot be used"):
        read_admission(json.dumps(answers[0]).encode(), token(authority), Ed25519PrivateKey.generate())


def test_a_copy_that_cannot_be_written_keeps_nobody_out(authority: Authority) -> None:
    """The roster has the peer by then: if it were refused, its machine would throw away the key in the roster."""
    (authority.folder / "peer1" / ".roster.json.tmp").mkdir()
    assert status(invitation(authority).answer(options(), 1.0)) == 200
    assert "peer5" in authority.roster.by_id
    assert read_roster(authority.folder / "peer2" / "roster.json") == authority.roster
    assert read_roster(authority.folder / "peer1" / "roster.json").number == 1


def test_a_contract_is_signed_although_a_copy_of_it_cannot_be_written(authority: Authority) -> None:
    (authority.folder / "peer1" / ".contract.json.tmp").mkdir()
    signed = sign_next(authority, b'{"name":"wards"}', 7, b"name: wards # changed\n")
    for folder in (authority.folder, authority.folder / "peer2"):
        assert read_contract(folder / "contract.json", authority.roster.authority) == signed
    file = authority.folder / "peer1" / "federation.yaml"
    assert file.read_bytes() == b"name: wards\n", "without its contract it would keep the peer from starting"
    assert sign_next(authority, b'{"name":"wards"}', 8, b"name: wards\n").number == 2


def test_a_new_folder_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that waited beside it is removed then, and no other one would be admitted."""
    flushed = set[int]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.fstat(descriptor).st_ino))
    with new_folder(tmp_path / "peer5") as place:
        (place / "keys").mkdir()
        (place / "keys" / "peer5.key").write_text("key")
        paths = [tmp_path, place, place / "keys", place / "keys" / "peer5.key"]
        inodes = {path.stat().st_ino for path in paths}
    assert inodes <= flushed


def test_an_authority_without_room_says_so(authority: Authority) -> None:
    for name in ("roster.json", "contract.json"):
        (authority.folder / f".{name}.tmp").mkdir()
    with pytest.raises(EnrolmentError, match=r"roster.json.tmp cannot be written .*run the same line again"):
        change_roster(authority, lambda roster, by: expel(roster, "peer2", by))
    assert authority.roster.number == 1
    with pytest.raises(EnrolmentError, match=r"contract.json.tmp cannot be written"):
        sign_next(authority, b'{"name":"wards"}', 7, b"name: wards\n")


def test_only_the_one_that_was_admitted_confirms(authority: Authority) -> None:
    open_one, right = invitation(authority), json.dumps({"secret": SECRET.hex()}).encode()
    assert open_one.confirm(right) is None
    assert not open_one.confirmed, "nobody was admitted"
    assert status(open_one.answer(options(confirms=True), 1.0)) == 200
    for wrong, expected in ((right.replace(b"00", b"11"), 403), (b"[]", 400)):
        denied = open_one.confirm(wrong)
        assert denied is not None
        assert (denied.status, open_one.confirmed) == (expected, False)
    assert open_one.confirm(right) is None
    assert open_one.confirmed


def test_the_same_request_gets_the_same_answer_again(authority: Authority) -> None:
    open_one, wanted = invitation(authority), options()
    answer = open_one.answer(wanted, 1.0)
    assert open_one.answer(wanted, 2.0) == answer
    assert status(open_one.answer(options(), 2.0)) == 410
    assert authority.roster.number == 2


def test_a_folder_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(EnrolmentError, match=r"file/peer5 cannot be written .*make room there, or name another"),
        new_folder(tmp_path / "file" / "peer5"),
    ):
        pass


# ----------------------------------------------------------------------------------------------------------- over HTTPS


async def meet(
    authority: Authority, act: Callable[[Token], Any], seconds: float = PATIENCE, start: Path | None = None
) -> tuple[Any, Any]:
    """Invite, and call `act` with the token as soon as it exists; return both results, or their exceptions.

    What `act` has got is confirmed.
    """
    ready: asyncio.Future[Token] = asyncio.get_running_loop().create_future()

    async def come() -> Any:
        made = await ready
        found = await act(made)
        await confirm(made)
        return found

    inviting = invite(authority, "peer5", ADDRESS, None, "127.0.0.1:0", "127.0.0.1", seconds, ready.set_result, start)
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(inviting, come(), return_exceptions=True)


def test_invite_and_join_over_tls_make_a_peer_that_can_show_who_it_is(authority: Authority, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (roster, arrived), admission = asyncio.run(meet(authority, lambda made: join_federation(made, key)))
    assert roster == admission.roster == authority.roster
    assert arrived
    folder = tmp_path / "peer5"
    with new_folder(folder) as place:
        own = new_peer("peer5", "127.0.0.1", 7405, DataSettings.model_validate("simulation:1"), "127.0.0.1")
        write_peer(place, own, key, admission)
    keys = folder / "keys"
    files = (keys / "peer5.crt", keys / "peer5.key", keys / "federation-ca.crt")
    assert load_identity("peer5", *files, roster).key.public_key() == key.public_key()
    assert (folder / "federation.yaml").read_text() == "name: wards\n"


def test_who_joins_gets_the_newest_contract_and_the_model_that_the_federation_starts_from(
    authority: Authority, tmp_path: Path
) -> None:
    """No person copies a file; a token still admits one peer only, and only its holder gets the model."""
    signed = sign_next(authority, b'{"name":"wards"}', 7, b"name: wards\n")
    start, got = tmp_path / "start.safetensors", tmp_path / "got"
    start.write_bytes(bytes(range(256)) * 5000)

    async def come(made: Token) -> Admission:
        with pytest.raises(EnrolmentError, match="does not match the invitation"):
            await fetch_model(replace(made, secret=bytes(16)), got)
        assert not got.exists()
        assert await fetch_model(made, got)
        return await join_federation(made, Ed25519PrivateKey.generate())

    _, admission = asyncio.run(meet(authority, come, start=start))
    assert admission.contract == signed
    assert got.read_bytes() == start.read_bytes()


def test_a_contract_by_somebody_else_is_not_taken_with_an_admission(authority: Authority) -> None:
    key, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    answer = invitation(authority).answer(options(key), 0.0)
    assert isinstance(answer, bytes)
    public = stranger.public_key().public_bytes_raw()
    foreign = sign_contract(SignedContract(authority=public, number=1, starts=1, text=b"{}"), stranger)
    changed = json.dumps(json.loads(answer) | {"contract": contract_bytes(foreign).decode()}).encode()
    assert read_admission(answer, token(authority), key).contract is None
    with pytest.raises(EnrolmentError, match="cannot be used"):
        read_admission(changed, token(authority), key)


def test_nobody_else_can_answer_in_the_authoritys_place(authority: Authority, tmp_path: Path) -> None:
    """The joining peer accepts only the key in its token, whatever it trusted before."""

    async def elsewhere(made: Token) -> None:
        await join_federation(
            replace(made, authority=Ed25519PrivateKey.generate().public_key().public_bytes_raw()), key
        )

    key = Ed25519PrivateKey.generate()
    _, refused = asyncio.run(meet(authority, elsewhere, seconds=0.5))
    assert isinstance(refused, EnrolmentError)
    assert "the peer at this address has another key" in str(refused)
    assert authority.roster.number == 1


@asynccontextmanager
async def cutting(port: int, connections: int) -> AsyncIterator[int]:
    """Yield a port that forwards to this one, and cuts off the answers of so many connections."""
    cut, talks = 0, set[asyncio.Task[None]]()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()  # the answering side would otherwise wait for the next request until it gives up

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        talks.add(asyncio.current_task())  # type: ignore[arg-type]
        beyond, onward = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(pass_on(reader, onward))
        while data := await beyond.read(65536):
            if len(data) > 1500 and cut < connections:  # longer than TLS's own messages
                cut += 1
                break
            writer.write(data)
        asking.cancel()
        writer.transport.abort()
        onward.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*talks, return_exceptions=True)
    assert cut == connections


@pytest.mark.parametrize("lost", [1, 3])
def test_an_answer_that_is_lost_is_asked_for_again(authority: Authority, lost: int) -> None:
    async def work() -> Any:
        async with (
            listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, _),
            cutting(port, lost) as cut,
        ):
            return await join_federation(token(authority, f"127.0.0.1:{cut}"), key)

    key = Ed25519PrivateKey.generate()
    if lost < 3:
        assert asyncio.run(work()).roster == authority.roster
    else:
        with pytest.raises(
            EnrolmentError, match=r"gave no answer.*Run the same line again\. .* run there  fedpeer revoke peer5  and"
        ):
            asyncio.run(work())
    assert authority.roster.number == 2


def _late_answers(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    """Raise a timeout in the client for so many answers, although they arrive."""
    start, times = ClientResponse.start, 0

    async def started(self: ClientResponse, connection: Any) -> ClientResponse:
        nonlocal times
        times += 1
        answer = await start(self, connection)
        if times <= late:
            raise TimeoutError
        return answer

    monkeypatch.setattr(ClientResponse, "start", started)


def test_an_answer_that_is_late_is_asked_for_again_with_the_same_key(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request had arrived, so the peer was a member: with another key, the invitation would count as used."""

    async def work() -> Admission:
        async with listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, _):
            return await join_federation(token(authority, f"127.0.0.1:{port}"), Ed25519PrivateKey.generate())

    _late_answers(monkeypatch, 1)
    assert asyncio.run(work()).roster == authority.roster
    assert authority.roster.number == 2


def test_an_answer_that_is_lost_after_it_was_written_is_asked_for_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invitation stays open until the new machine confirms that it has all of it."""
    _late_answers(monkeypatch, 1)
    key = Ed25519PrivateKey.generate()
    invited, admission = asyncio.run(meet(authority, lambda made: join_federation(made, key)))
    assert invited == (admission.roster, True)
    assert authority.roster.number == 2


@pytest.mark.parametrize("confirms", [True, False])
def test_an_invitation_does_not_wait_long_for_a_confirmation(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, confirms: bool
) -> None:
    """A peer of an earlier release confirms nothing, and is not waited for."""
    seconds = 0.2 if confirms else 2 * PATIENCE
    monkeypatch.setattr("fedpeer.peer.runtime.enrolment._CONFIRM_SECONDS", seconds)

    async def come(made: Token) -> None:
        body = options(secret=made.secret.hex(), confirms=confirms)
        async with (
            ClientSession() as session,
            session.post(f"https://{made.listener}/v1/join", data=body, ssl=joining_context(made.authority)) as answer,
        ):
            assert answer.status == 200
        monkeypatch.setattr("fedpeer.peer.runtime.enrolment._CONFIRMING_SECONDS", 1e-6)

    (roster, arrived), _ = asyncio.run(meet(authority, come))
    assert (roster, arrived) == (authority.roster, not confirms)


def test_an_answer_that_is_lost_stays_lost_if_nobody_listens_then(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inviting machine has written its answer and is done: nobody can ask again, and it reports the admission."""
    start = ClientResponse.start

    async def work() -> None:
        async with AsyncExitStack() as stack:
            port, _ = await stack.enter_async_context(listening(invitation(authority), "127.0.0.1:0", lambda: 0.0))

            async def started(self: ClientResponse, connection: Any) -> ClientResponse:
                await start(self, connection)
                await stack.aclose()
                raise TimeoutError

            monkeypatch.setattr(ClientResponse, "start", started)
            await join_federation(token(authority, f"127.0.0.1:{port}"), Ed25519PrivateKey.generate())

    with pytest.raises(
        EnrolmentError, match=r"gave no answer.*: it took too long. .* run there  fedpeer revoke peer5 "
    ):
        asyncio.run(work())
    assert authority.roster.number == 2


def test_a_listener_that_is_silent_from_the_start_cannot_be_reached(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener accepts connections and sends nothing: no request has left."""
    monkeypatch.setattr("fedpeer.peer.runtime.enrolment._CONNECTION_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = token(authority, f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EnrolmentError, match="cannot be reached"):
            asyncio.run(join_federation(made, Ed25519PrivateKey.generate()))


def test_an_invitation_stays_open_for_one_that_has_gone_before_its_answer(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has gone when the answer is to leave, and asks again."""
    times, prepare = 0, web.Response.prepare

    async def gone(self: web.Response, request: web.BaseRequest) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        return await prepare(self, request)

    async def work() -> None:
        async with listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, over):
            joining = asyncio.create_task(join_federation(token(authority, f"127.0.0.1:{port}"), key))
            while not times:
                await asyncio.sleep(0)
            assert not over.is_set()
            admission = await joining
            assert admission.roster == authority.roster

    key = Ed25519PrivateKey.generate()
    monkeypatch.setattr(web.Response, "prepare", gone)
    asyncio.run(work())


def test_a_wrong_token_and_one_used_before_are_told_so(authority: Authority) -> None:
    async def work() -> tuple[str, str]:
        found = []
        async with listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, _):
            right = token(authority, f"127.0.0.1:{port}")
            for each in (replace(right, secret=bytes(16)), right, right):
                try:
                    await join_federation(each, Ed25519PrivateKey.generate())
                except EnrolmentError as error:
                    found.append(str(error))
        wrong, used = found
        return wrong, used

    wrong, used = asyncio.run(work())
    assert wrong == "Not admitted: This token does not match the invitation; copy it again."
    assert used == "Not admitted: This invitation has already been used; ask for another one."


def test_who_has_the_token_gets_in_while_others_guess(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to wrong secrets are delayed for an hour; if there are more than fit, the oldest is sent."""
    monkeypatch.setattr("fedpeer.peer.runtime.invitation.DELAY_MAX_S", 3600.0)
    monkeypatch.setattr("fedpeer.peer.runtime.invitation.DELAY_S", 3600.0)

    async def work() -> tuple[list[str], Any]:
        async with listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, over):
            right, told = token(authority, f"127.0.0.1:{port}"), list[str]()

            async def guess(number: int) -> None:
                try:
                    await join_federation(
                        replace(right, secret=number.to_bytes(16, "big")), Ed25519PrivateKey.generate()
                    )
                except EnrolmentError as error:
                    told.append(str(error))

            guesses = [asyncio.create_task(guess(number)) for number in range(LATE_MAX + 2)]
            admission = await join_federation(right, Ed25519PrivateKey.generate())
            early = len(told)
            await confirm(right)
            assert over.is_set()
        await asyncio.gather(*guesses)
        assert early <= 2
        return told, admission

    async def patiently() -> tuple[list[str], Any]:
        async with asyncio.timeout(6 * PATIENCE):
            return await work()

    told, admission = asyncio.run(patiently())
    assert admission.roster == authority.roster
    assert len(told) == LATE_MAX + 2


def test_who_holds_connections_keeps_nobody_out(authority: Authority) -> None:
    """Silent connections and trickling requests block nobody: each of their addresses has only a few places."""

    async def work() -> tuple[int, Any]:
        async with listening(invitation(authority), "127.0.0.1:0", lambda: 0.0) as (port, _), AsyncExitStack() as held:
            tls = joining_context(authority.roster.authority)
            readers = []
            for number in range(100):
                where = (f"127.0.0.{2 + number % 5}", 0)
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=where)
                writer.write(b"POST /v1/join HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{" if number % 2 else b"P")
                held.callback(writer.transport.abort)
                readers.append((reader, writer))
            admission = await join_federation(token(authority, f"127.0.0.1:{port}"), Ed25519PrivateKey.generate())
            await asyncio.sleep(0)
            return sum(not reader.at_eof() and reader.exception() is None for reader, _ in readers), admission

    there, admission = asyncio.run(work())
    assert admission.roster == authority.roster
    assert there <= INVITED.connections


def test_an_invitation_that_nobody_takes_ends_in_time(authority: Authority) -> None:
    async def stay_away(made: Token) -> None:
        pass

    gone, _ = asyncio.run(meet(authority, stay_away, seconds=0.05))
    assert isinstance(gone, EnrolmentError)
    assert "Nobody joined" in str(gone)


def test_a_listener_that_is_not_there_is_said_to_be_unreachable(authority: Authority) -> None:
    with pytest.raises(EnrolmentError, match=r"cannot be reached at 127\.0\.0\.1:1: connection refused"):
        asyncio.run(join_federation(token(authority, "127.0.0.1:1"), Ed25519PrivateKey.generate()))


def test_a_port_that_is_taken_is_said_to_be_so(authority: Authority) -> None:
    async def listen() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            async with listening(invitation(authority), f"127.0.0.1:{taken.getsockname()[1]}", lambda: 0.0):
                pass

    with pytest.raises(EnrolmentError, match="choose another --listen"):
        asyncio.run(listen())


def test_a_new_roster_is_brought_first_to_those_that_can_be_reached(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, where many peers open all connections themselves, no peer that can take the roster would get it."""
    monkeypatch.setattr("fedpeer.peer.runtime.announce._ANNOUNCED_MAX", 1)
    one, two = authority.roster.entries
    roster = replace(authority.roster, entries=(replace(one, address=str(PeerUrl.nowhere(one.id))), two))
    assert asyncio.run(announce(authority, roster)) == {two.id: "connection refused"}


def test_a_new_roster_is_brought_to_the_peers_that_answer(authority: Authority) -> None:
    """peer1 listens with its own identity and accepts the roster from the authority; peer2 is away."""
    keys = authority.folder / "peer1" / "keys"
    one = load_identity("peer1", keys / "peer1.crt", keys / "peer1.key", keys / "federation-ca.crt", authority.roster)

    async def work() -> tuple[dict[str, str], Port]:
        policy = replace(POLICY, federation=authority.roster.federation_id, me="peer1", peers=frozenset({"authority"}))
        port = Port(policy=policy, owner="authority")
        async with serving(port, tls=server_context(one)):
            entries = tuple(
                replace(each, address=port.url) if each.id == "peer1" else each for each in authority.roster.entries
            )
            roster = replace(authority.roster, entries=entries)
            told = await announce(authority, roster)
        return told, port

    told, port = asyncio.run(work())
    assert told == {"peer1": "", "peer2": "connection refused"}
    [(sender, _, message)] = port.delivered
    assert (sender, type(message).__name__) == ("authority", "RosterNews")
