"""`bob`, a complete running peer that receives bad messages, and the peers that send them.

The test holds the keys of all of them. ann, bob, cas and dan form a ring, in which ann and cas are bob's neighbors and
dan is not; each of the other three has a port on which bob's messages arrive. All have met bob except eve, who is away
and whose address does not exist, so bob waits for her and nothing durable changes by itself.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedpeer.config.federation import Federation
from fedpeer.config.peer_file import PeerFile
from fedpeer.gossip.claims import Advert, Claim, claim_text
from fedpeer.peer.runtime.identity import Identity, server_context, shared_client_context
from fedpeer.peer.runtime.listener import bind_socket
from fedpeer.peer.runtime.prepared import prepare_peer
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.message_policy import MessagePolicy
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.messages import Hello, Message, Ping, RejectMessage
from fedpeer.peer.wire.rejections import REJECTIONS
from fedpeer.peer.wire.roster import sign_statement, to_bytes
from tests.peer.hostile import Party, numbers, transfer
from tests.peer.runtime.people import People
from tests.peer.runtime.port import Port, request, serving
from tests.peer.runtime.whole import PATIENCE, Whole, whole
from tests.sims import worlds

#: Incarnation in which each of these peers sends.
INCARNATIONS = {"ann": 1, "cas": 1, "dan": 2}
#: Process generation in which all of them send.
LIFE = 5
NOWHERE = "https://no-such-host.invalid:7401"


@dataclass
class Bob:
    """The running peer bob, whose messages and state the test can see, with the other peers' keys and ports."""

    peer: Whole
    people: People
    keys: Mapping[str, Identity]
    ears: Mapping[str, Port]
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)

    def party(self, sender: str = "ann") -> Party:
        return Party(
            federation=self.people.roster.federation_id,
            sender=sender,
            recipient="bob",
            third="cas",
            incarnation=INCARNATIONS[sender],
            to_incarnation=1,
            group="all",
            closed="closed",
            far="all",
            length=self.peer.state.peer_groups.groups["all"].length,
            weight_max=4.0,
        )

    def tls(self, sender: Identity) -> ssl.SSLContext:
        """Return the context of a peer, which blocking sockets can use, too."""
        return shared_client_context(sender)

    def tls_of(self, sender: str) -> ssl.SSLContext:
        """Return the context of ann, cas or dan, made once: loading the keys costs as much as a handshake."""
        if sender not in self.contexts:
            self.contexts[sender] = self.tls(self.keys[sender])
        return self.contexts[sender]

    # ------------------------------------------------------------------------------------------------- to say something

    @contextmanager
    def line(self, tls: ssl.SSLContext | None = None) -> Iterator[ssl.SSLSocket]:
        """Open a TLS connection to bob's port, by default with ann's identity."""
        tls = tls or self.tls_of("ann")
        with socket.create_connection(self.address, PATIENCE) as plain, tls.wrap_socket(plain) as secret:
            yield secret

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.people.roster.by_id["bob"].address.rsplit(":", 1)[1])

    def ask(self, said: bytes, tls: ssl.SSLContext | None = None) -> RejectMessage | None:
        """Send these bytes over TLS; return the rejection in the answer, or None if they were accepted."""
        with self.line(tls) as secret:
            secret.sendall(said)
            return answer(secret)

    def say(self, frame: bytes, sender: str = "ann") -> RejectMessage | None:
        return self.ask(request(frame), self.tls_of(sender))

    async def entered(self, sender: str) -> None:
        """Wait until a request of this sender is in progress."""
        while not self.peer.server.admission.at_once[sender]:
            await asyncio.sleep(0)

    # ------------------------------------------------------------------------------------------------------ good things

    def framed(self, message: Message, sender: str = "ann", **envelope: Any) -> bytes:
        sealed = {"incarnation": INCARNATIONS[sender], "to_incarnation": 1} | envelope
        whole_one = Envelope(federation=self.people.roster.federation_id, sender=sender, recipient="bob", **sealed)
        return b"".join(map(bytes, codec.encode(whole_one, message)))

    def ping(self, *claims: Claim, sender: str = "ann") -> bytes:
        return self.framed(Ping(number=1, claims=claims), sender)

    def hello(
        self,
        sender: str = "ann",
        digest: bytes = b"",
        incarnation: int = 0,
        generation: int = LIFE,
        known_generation: int = 0,
        contract: bytes = b"",
    ) -> bytes:
        """Return the Hello with which the two peers meet; `digest` and `contract` replace bob's own digests."""
        him = self.peer.state
        group = next(iter(him.peer_groups.consensus_by_group), "all")
        hello = Hello(
            generation=generation,
            nonce=1,
            known_generation=known_generation,
            contract=contract or him.setup.contract,
            groups=((group, digest or self.peer.inside(lambda: him.digest_of(group))),),
            channels=(),
            round=0,
            begun=False,
            roster=self.people.roster.number,
            answer=True,
        )
        return self.framed(hello, sender, incarnation=incarnation or INCARNATIONS[sender])

    def taken(self) -> int:
        """Return how many of ann's transfers bob has taken."""
        channels = self.peer.inside(lambda: self.peer.state.durable.groups["all"].into)
        return channels["ann"].taken if "ann" in channels else 0

    def next(self, *, ahead: int = 0, **changed: Any) -> bytes:
        """Return ann's next transfer, with all model values 1; `changed` replaces fields, `ahead` shifts its number."""
        ones = numbers(*[changed.setdefault("weight", 2.0**-8)] * self.party().length)
        given: dict[str, Any] = {"seq": self.taken() + 1 + ahead, "tail": ones} | changed
        return transfer(self.party(), **given)

    def gives(self) -> bytes:
        """Send ann's next transfer, check that bob takes it, and return its bytes."""
        frame, before = self.next(), self.taken()
        assert self.say(frame) is None
        assert self.taken() == before + 1
        return frame

    def version(self) -> int:
        """Return the version of bob's statement about himself."""
        return self.peer.inside(lambda: self.peer.state.membership.statement.version)

    def claim(self, about: str, state: Literal["suspect", "dead"], version: int) -> Claim:
        """Return a claim by ann about a peer."""
        bare = Claim(about=about, incarnation=1, version=version, state=state, author="ann", advert=None, signature=b"")
        return self.signed(bare, "ann")

    def alive(self, peer: str, version: int) -> Claim:
        """Return a peer's claim that it is alive."""
        advert = Advert(
            address=NOWHERE, roster=1, generation=1, nonce=1, round=0, score=None, begun=False, models=("closed",)
        )
        bare = Claim(
            about=peer, incarnation=1, version=version, state="alive", author=peer, advert=advert, signature=b""
        )
        return self.signed(bare, peer)

    def signed(self, claim: Claim, by: str) -> Claim:
        federation = self.people.roster.federation_id
        text = claim_text(federation, claim)
        return replace(claim, signature=sign_statement(self.keys[by].key, "claim", federation, text))

    # ---------------------------------------------------------------------------------------------------------- judging

    def pardon(self) -> None:
        """Clear all reputations and rates, and let the log write the next line of each name at once."""

        def clear() -> None:
            self.peer.state.others.reputations.clear()
            self.peer.state.others.changed()
            self.peer.server.admission.rates.clear()
            self.peer.process._log.close()

        self.peer.inside(clear)

    @contextmanager
    def limits(self, **changed: float) -> Iterator[None]:
        """Change the server's limits inside the block."""
        server = self.peer.server.admission
        usual = server.limits
        self.peer.inside(lambda: setattr(server, "limits", replace(usual, **changed)))  # type: ignore[arg-type]
        self.peer.inside(server.rates.clear)
        yield
        self.peer.inside(lambda: setattr(server, "limits", usual))

    @contextmanager
    def refuses(self, code: str, words: str = "", *, times: int = 1) -> Iterator[None]:
        """Check that the one bad message that the block sends is rejected.

        It is counted once and logged in one line (which contains one of `words`, separated by |), or as many as there
        are members to blame; nothing durable changes, nothing is kept, and a good message is accepted afterwards.
        """
        self.pardon()
        since, counted, durable = len(self.peer.lines), self.peer.counted(code), self.peer.durable()
        yield
        line = self.peer.line(code, since)
        assert REJECTIONS[code].log in line.text
        assert any(each in line.text for each in words.split("|")), line.text
        assert self.peer.counted(code) == counted + times
        assert len([each for each in self.peer.lines[since:] if each.what == code]) == times
        assert self.peer.durable() == durable
        assert self.peer.inside(self._kept) == 0
        self.pardon()
        assert self.say(self.ping()) is None

    def _kept(self) -> int:
        channels = [channel for peer in self.peer.server.admission.pool._peers.values() for channel in peer.values()]
        return len(self.peer.process._waiting) + sum(channel.lent for channel in channels)

    @contextmanager
    def tells(self, to: str, what: Callable[[Message], bool]) -> Iterator[None]:
        """After the block, wait until bob has sent the peer `to` a message for which `what` holds."""
        ear = self.ears[to]
        since = len(ear.delivered)
        yield
        self.peer.wait(ear.until(lambda: any(what(message) for _, _, message in ear.delivered[since:])))


def answer(connection: socket.socket) -> RejectMessage | None:
    """Return the rejection in the next answer, or None if the message was accepted."""
    with closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        refused = codec.decode_answer(response.read())
        if response.status == 204:
            return None
        assert isinstance(refused, RejectMessage), response.status
        return refused


@contextmanager
def bob_at(
    folder: Path, federation: Federation | None = None, kind: type[Bob] = Bob, **settings: object
) -> Iterator[Bob]:
    """Run bob in this federation, by default one without a server, with a group of all and a group with eve.

    `settings` are keys of his file.
    """
    people = People.at(folder / "people")
    ports = {peer: bind_socket("127.0.0.1", 0) for peer in ("ann", "bob", "cas", "dan")}
    keys = {
        peer: people.identity(peer, address=f"https://127.0.0.1:{port.getsockname()[1]}")
        for peer, port in ports.items()
    }
    keys["eve"] = people.identity("eve", address=NOWHERE)
    (folder / "roster.json").write_bytes(to_bytes(people.roster))
    ports["bob"].close()
    models = {
        "all": {"neurons": {"input": "all", "hidden1": 1}, "members": ["ann", "bob", "cas", "dan"]},
        "closed": {"neurons": {"hidden1": 1}, "members": ["bob", "eve"]},
    }
    equals = worlds.federation(
        network="mlp:64+3+10", gossip__gather=3600.0, partial_models=models, simulation__peers=None
    )
    mine = keys["bob"]
    files = {"certificate": mine.certificate_file, "key": mine.key_file, "authority": mine.authority_file}
    file = PeerFile.model_validate(
        {
            "id": "bob",
            "federation": "federation.yaml",
            "roster": str(folder / "roster.json"),
            "listen": people.roster.by_id["bob"].address.removeprefix("https://"),
            "state": str(folder / "state"),
            "identity": {name: str(path) for name, path in files.items()},
            "data": {"simulation": 1},
            "allow_python": ["tests"],
            **settings,
        }
    )
    ears = {peer: Port(owner="bob") for peer in INCARNATIONS}

    async def listen(stack: AsyncExitStack) -> None:
        for peer, ear in ears.items():
            await stack.enter_async_context(serving(ear, tls=server_context(keys[peer]), listening=ports[peer]))

    with whole(prepare_peer(file, federation or equals), listen) as peer:
        bob = kind(peer, people, keys, ears)
        policy = bob.peer.inside(lambda: peer.process._node.policy("ann"))
        for other, ear in ears.items():
            ear.policy = _policy_of(other, policy)
            with bob.tells(other, lambda message: isinstance(message, Hello)):
                assert bob.say(bob.hello(other), other) is None
        groups = peer.inside(lambda: peer.process._node.policy("dan")).groups
        assert federation or groups["all"].neighbors == {"ann", "cas"}
        yield bob


def _policy_of(other: str, policy: MessagePolicy) -> MessagePolicy:
    """Return the policy of one of the other peers, which accepts any message from bob."""
    groups = {id: replace(spec, neighbors=spec.members) for id, spec in policy.groups.items()}
    return replace(policy, me=other, incarnation=INCARNATIONS[other], groups=groups)
