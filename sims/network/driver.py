"""What a simulated simulator is handed: how its machines are started, how bytes are made of what they say and save, and
what work gives; and the processes that these machines live in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedpeer.peer.state.events import Effect, Event, MessageReceived, Persist, Send, Tick, Work
from fedpeer.peer.state.saving import Outbox, Recovered
from fedpeer.peer.wire.signed_contract import SignedContract
from fedpeer.rejection import Rejection

#: Ticks before a failed save is tried again, doubled each time up to the second number; as a real peer does.
RETRY_TICKS, RETRY_TICKS_MAX = 4.0, 200.0


class Machine(Protocol):
    """A node, or anything that behaves like one."""

    def step(self, event: Event) -> Sequence[Effect]: ...


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What the simulator cannot do itself.

    start       the machine of a peer whose disk held this
    save        (peer, Persist) -> its bytes
    encode      (sender, its effect) -> the bytes of a message
    decode      (receiver, its machine, sender, bytes) -> the event; or a refusal, and the bytes that answer it
    answered    (sender, its machine, receiver, bytes) -> what the answer to a refused message is to the sender
    nobody_listens  (sender, its machine, receiver) -> what it is to the sender that the receiver's process has ended
    work        (peer, what takes long) -> the event with its result
    work_ticks  how long that takes
    lie         (names of lies, the liar's machine, that of the other, a number that rises) -> what it says to it
    withholds   (names of lies, what a liar would say as any peer) -> whether it keeps that to itself
    fact        (peer, effect) -> what it states, for the history's judges; None: nothing
    amend       (peer, contract) -> None: its machine keeps this one, as the newest that the authority signed
    """

    start: Callable[[str, Recovered], Machine]
    save: Callable[[str, Persist], bytes]
    encode: Callable[[str, Send], bytes]
    decode: Callable[[str, Machine, str, bytes], MessageReceived | tuple[Rejection, bytes]]
    answered: Callable[[str, Machine, str, bytes], Event | None] = lambda sender, machine, receiver, data: None
    nobody_listens: Callable[[str, Machine, str], Event | None] = lambda sender, machine, receiver: None
    work: Callable[[str, Work], Event]
    work_ticks: Callable[[str, Work], float] = lambda peer, effect: 1.0
    lie: Callable[[Collection[str], Machine, Machine, int], Iterable[Send]] = lambda names, liar, other, number: ()
    withholds: Callable[[Collection[str], Send], bool] = lambda names, send: False
    fact: Callable[[str, Effect], object] = lambda peer, effect: None
    amend: Callable[[str, SignedContract], None] = lambda peer, contract: None


#: What waits to be fed to a machine: an event, or bytes of a message or of an answer that it has still to decode.
Fed = Event | Callable[[Machine], Event | None]


@dataclass
class SimulatedProcess:
    """One life of a peer's process."""

    machine: Machine
    began: float
    rate: float
    leapt: float = 0.0
    outbox: Outbox = field(default_factory=Outbox)
    inbox: deque[Fed] = field(default_factory=deque)
    saving: int = 0  # how many saves are under way
    retry: float = RETRY_TICKS
    feeding: bool = False
    paused_until: float = 0.0
    reads_from: float = 0.0  # when it has read what arrived while it stood still
    busy_until: float = 0.0  # the thread that trains

    def next(self, now: float) -> Fed | None:
        """What is fed to the machine next; None: nothing, for now."""
        if now < self.paused_until or not self.inbox:
            return None
        if now >= self.reads_from:
            return self.inbox.popleft()
        tick = next((fed for fed in self.inbox if isinstance(fed, Tick)), None)
        if tick is not None:
            self.inbox.remove(tick)
        return tick

    def clock(self, now: float) -> int:
        return int((now - self.began) * self.rate + self.leapt)
