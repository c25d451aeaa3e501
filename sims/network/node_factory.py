"""Real nodes for the simulator: every peer of a world with its local task, its start from a disk, and the real codec.

A simulator has no network that could be attacked, so identities are simple: senders are known, and statements are
signed with a keyed hash instead of Ed25519, with keys that follow from the seed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from fedpeer.config.choice import Choice
from fedpeer.config.contract import HeldContract
from fedpeer.data.own.code import imported
from fedpeer.gossip.averaging import Averaging
from fedpeer.peer.consensus.capability import Capability
from fedpeer.peer.node.node import Node
from fedpeer.peer.node.node_setup import disk_bytes, node_of, outer_rules_of, rules_of, setup_of
from fedpeer.peer.node.trainer import LocalTrainer, Training
from fedpeer.peer.state.events import (
    Effect,
    Evaluated,
    Event,
    MessageReceived,
    NobodyListens,
    Persist,
    Send,
    Train,
    TrainClient,
    Work,
    Worked,
)
from fedpeer.peer.state.journal import held_of
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.state.setup import Setup
from fedpeer.peer.wire import codec
from fedpeer.peer.wire.framing import unframe
from fedpeer.peer.wire.message_spec import Envelope
from fedpeer.peer.wire.roster import Roster, RosterEntry
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.peer.wire.versions import NEWEST
from fedpeer.rejection import Rejection
from fedpeer.sims.network.driver import Driver, Machine
from fedpeer.sims.network.lies import lies_to, withheld
from fedpeer.sims.peers import local_tasks, secret_of
from fedpeer.sims.world import World

#: Virtual seconds that a local step takes on a peer whose pace is 1: a small network on a plain processor.
STEP_S = 0.001


@dataclass(frozen=True, eq=False)
class NodeFactory:
    """The nodes of all peers of a world under one method.

    pace     by peer, the factor by which it takes longer to train; default 1
    begun    by peer, how many processes it has had
    speaks   by peer, the newest wire version of its release, if older than this release's
    later    worlds of later contracts, by the contract's text
    signed   by peer, the newest contract signed by the authority that its machine has stored
    keys     by peer, its key (32 bytes), if it joined again with another one
    """

    world: World
    method: Choice
    roster: Roster
    trainers: Mapping[str, Training]
    setups: dict[str, Setup]
    pace: dict[str, float] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    speaks: dict[str, int] = field(default_factory=dict)
    later: dict[bytes, World] = field(default_factory=dict)
    signed: dict[str, SignedContract] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World, method: Choice, pace: dict[str, float] | None = None) -> NodeFactory:
        entries = (RosterEntry(id=peer, key=_key(world, peer), address=f"https://{peer}:7500") for peer in world.peers)
        roster = Roster(federation=world.federation.name, authority=_key(world, ""), number=1, entries=tuple(entries))
        found = {
            peer: LocalTrainer(
                local_task,
                method,
                imported,
                world.peers,
                patience=_patience(local_task.examples),
                outer=outer_rules_of(local_task.assembly, roster, peer, method),
            )
            for peer, local_task in local_tasks(world).items()
        }
        setups = {
            peer: replace(setup_of(world.assembly_of(peer), roster, peer, nonce=0, method=method), reader=trainer)
            for peer, trainer in found.items()
        }
        return cls(world, method, roster, found, setups, pace or {})

    def averaging(self) -> list[Averaging]:
        """Return how each group averages, once for each member."""
        return [policy for setup in self.setups.values() for policy in setup.peer_groups.averaging.values()]

    def longest_ticks(self) -> float:
        """Return the ticks of the slowest peer's training in a round."""
        return max(self._ticks(peer, trainer.steps) for peer, trainer in self.trainers.items())

    def driver(
        self,
        evaluated: Callable[[str, Evaluated], None] = lambda peer, event: None,
        fact: Callable[[str, Effect], object] = lambda peer, effect: None,
    ) -> Driver:
        """Return the simulator's driver.

        Args:
            evaluated: called with each peer's evaluations.
            fact: see `Driver`.
        """

        def work(peer: str, effect: Work) -> Worked:
            event = self.trainers[peer].work(effect)
            if isinstance(event, Evaluated):
                evaluated(peer, event)
            return event

        def save(peer: str, persist: Persist) -> bytes:
            return disk_bytes(persist, self.setups[peer])

        return Driver(
            start=self.node,
            save=save,
            encode=self._encode,
            decode=self._decode,
            answered=_answered,
            nobody_listens=_nobody_listens,
            work=work,
            work_ticks=self._work_ticks,
            lie=_lie,
            withholds=lambda names, send: withheld(names, send.message),
            fact=fact,
            amend=self.signed.__setitem__,
        )

    def node(self, peer: str, recovered: Recovered) -> Node:
        """Return the peer's node after a start from this disk."""
        trainer, world = self.trainers[peer], self._adopt_contract(peer, recovered)
        setup = replace(self.setups[peer], secret=secret_of(self.world.draws, peer))
        if trainer.spec is not None:
            # Two processes of one identity are distinguished by the nonce that each draws at its start.
            self.begun[peer] += 1
            setup = replace(setup, nonce=self.world.draws.key("process", peer, self.begun[peer]) % 2**63)
        return node_of(
            setup,
            rules_of(world.federation, world.seed, peer, trainer.examples, setup.held.text),
            recovered,
            start_n=trainer.start(),
            state_size=trainer.state_size,
            sign=partial(self._sign, peer),
            verify=self._verify,
            verify_by=_verify_by,
            spec=trainer.spec,
            patience=_patience(trainer.examples),
        )

    def _adopt_contract(self, peer: str, recovered: Recovered) -> World:
        """Set this peer up for the contract under which it continues; return the world of that contract."""
        signed, held = self.signed.get(peer), None
        if recovered.snapshot is not None:
            held = held_of(unframe("snapshot", recovered.snapshot)[0])
        elif signed is not None:
            held = HeldContract(signed.number, signed.text, b"")
        world = self.world if held is None else self.later.get(held.text, self.world)
        if signed is not None or world is not self.world:
            before, own = self.setups[peer], world.assembly_of(peer)
            self.setups[peer] = replace(
                setup_of(own, before.peer_groups.roster, peer, nonce=0, method=self.method, held=held, signed=signed),
                reader=before.reader,
            )
        return world

    def _work_ticks(self, peer: str, effect: Work) -> float:
        return self._ticks(peer, self.trainers[peer].steps if isinstance(effect, Train | TrainClient) else 1)

    def _ticks(self, peer: str, steps: int) -> float:
        return steps * STEP_S * self.pace.get(peer, 1.0) / self.world.federation.gossip.tick

    def _encode(self, sender: str, send: Send) -> bytes:
        envelope = Envelope(
            federation=self.roster.federation_id,
            sender=sender,
            recipient=send.to,
            incarnation=send.incarnation,
            to_incarnation=send.to_incarnation,
            version=min(send.version, self.speaks.get(sender, NEWEST)),
        )
        return b"".join(codec.encode(envelope, send.message))

    def _decode(
        self, receiver: str, machine: Machine, sender: str, data: bytes
    ) -> MessageReceived | tuple[Rejection, bytes]:
        assert isinstance(machine, Node)
        policy = machine.policy(sender)
        found = self._too_new(receiver, data) or codec.decode(data, policy)
        if isinstance(found, Rejection):
            met = machine.durable.met.get(sender, 0)
            answer = Send(sender, codec.rejection_message(found), machine.durable.incarnation, met, policy.version)
            return Rejection(found.code, sender=sender), self._encode(receiver, answer)
        envelope, message = found
        return MessageReceived(sender, envelope.incarnation, envelope.to_incarnation, message, envelope.version)

    def _too_new(self, receiver: str, data: bytes) -> Rejection | None:
        """Reject a frame whose wire version is newer than the receiver's release; None if the release knows it."""
        newest = self.speaks.get(receiver, NEWEST)
        if newest == NEWEST:
            return None
        head = codec.parse_head(data)
        if isinstance(head, Rejection) or head.version <= newest:
            return None
        return Rejection("version_unsupported", f"version {head.version}; this release speaks up to {newest}")

    def _sign(self, peer: str, text: bytes) -> bytes:
        return _signed(text, self.keys.get(peer) or _key(self.world, peer))

    def _verify(self, author: str, text: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self._sign(author, text), signature)


def _verify_by(entry: RosterEntry, text: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(_signed(text, entry.key), signature)


def _signed(text: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(text, key=key).digest()


def _patience(examples: int) -> float:
    """Return a simulated peer's patience: all machines have the same capability except for their number of examples."""
    return Capability(examples=examples).patience


def _answered(sender: str, machine: Machine, receiver: str, data: bytes) -> Event | None:
    assert isinstance(machine, Node)
    message = codec.decode_answer(data)
    if message is None:
        return None
    return MessageReceived(receiver, machine.durable.met.get(receiver, 0), machine.durable.incarnation, message)


def _nobody_listens(sender: str, machine: Machine, receiver: str) -> Event | None:
    assert isinstance(machine, Node)
    return NobodyListens(receiver) if machine.consensus_by_group else None


def _lie(names: Collection[str], liar: Machine, other: Machine, number: int) -> Iterator[Send]:
    assert isinstance(liar, Node)
    assert isinstance(other, Node)
    return lies_to(names, liar, other, number)


def _key(world: World, peer: str) -> bytes:
    """Return the key of a peer, or of the authority (""), 32 bytes."""
    return world.draws.key("identity", peer).to_bytes(16, "little") * 2
