"""The simulator's interface to the nodes, and the simulated processes in which the nodes run.

The interface has the start of nodes, the encoding of messages and saves, and the training.
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
    """The functions that the simulator needs and cannot provide itself.

    start           (peer, content of its disk) -> its machine
    save            (peer, Persist) -> bytes for the disk
    encode          (sender, Send) -> bytes of the message
    decode          (receiver, its machine, sender, bytes) -> the event; or a rejection, and the bytes of the answer
    answered        (sender, its machine, receiver, bytes) -> the sender's event for the answer to a rejected message
    nobody_listens  (sender, its machine, receiver) -> the sender's event if the receiver's process is not running
    work            (peer, training or similar work) -> the event with its result
    work_ticks      (peer, the same) -> the ticks that it takes
    lie             (names of lies, the liar's machine, the victim's machine, a rising number) -> the messages to send
    withholds       (names of lies, a regular message of the liar) -> whether the liar withholds it
    fact            (peer, effect) -> the fact that it states, for the reference checks of the history; None: none
    amend           (peer, contract) -> None; stores the newest contract that the authority signed on the peer's machine
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


#: An input that waits for a machine: an event, or a function that decodes a message or an answer when it is its turn.
Fed = Event | Callable[[Machine], Event | None]


@dataclass
class SimulatedProcess:
    """One process of a peer, from start to end.

    rate          speed of its clock
    leapt         ticks by which its clock has leapt forward
    saving        number of saves under way
    retry         ticks until a failed save is tried again
    reads_from    tick at which it has read what arrived during a stall
    busy_until    tick at which each of its threads is free: the one that closes rounds, and the one that trains
    """

    machine: Machine
    began: float
    rate: float
    leapt: float = 0.0
    outbox: Outbox = field(default_factory=Outbox)
    inbox: deque[Fed] = field(default_factory=deque)
    saving: int = 0
    retry: float = RETRY_TICKS
    feeding: bool = False
    paused_until: float = 0.0
    reads_from: float = 0.0
    busy_until: dict[str, float] = field(default_factory=lambda: {"close": 0.0, "train": 0.0})

    def next(self, now: float) -> Fed | None:
        """Remove and return the machine's next input; None if there is none for now."""
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
