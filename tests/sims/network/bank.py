"""A small state machine to test the simulator with: peers pass coins on, and no coin may be lost or made.

The durable state is the balance, the one transfer in transit to each other peer, and the last number taken from each. A
transfer is repeated until it is acknowledged. Each start of a peer (`Bank.life`) gives other amounts than the one
before. A `Bank.hasty` peer sends before it saves, which is wrong.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedpeer.gossip.transfers import NumberedTransfer
from fedpeer.peer.state.events import Effect, Event, MessageReceived, Persist, Send, Tick, Train, Trained, Work
from fedpeer.peer.state.saving import Recovered
from fedpeer.peer.wire.messages import Ack, Transfer
from fedpeer.rejection import Rejection
from fedpeer.sims.network.driver import Driver, Machine

#: Coins that each peer begins with.
COINS = 1000


@dataclass
class Bank:
    """One peer; in each tick it gives a part of its balance to each other peer to which no transfer is in transit."""

    me: str
    others: Sequence[str]
    hasty: bool = False
    balance: int = COINS
    made: dict[str, int] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    trained: int = 0
    life: int = 0

    def apply(self, entry: list[int | str]) -> None:
        match entry:
            case ["gave", str(to), int(amount)]:
                self.made[to] = self.made.get(to, 0) + 1
                self.open[to] = amount
                self.balance -= amount
            case ["took", str(sender), int(seq), int(amount)]:
                self.taken[sender] = seq
                self.balance += amount
            case ["acked", str(to)]:
                del self.open[to]

    def step(self, event: Event) -> list[Effect]:
        effects = self._follow(event)
        return sorted(effects, key=lambda effect: isinstance(effect, Persist)) if self.hasty else effects

    def _follow(self, event: Event) -> list[Effect]:
        match event:
            case Tick():
                effects: list[Effect] = []
                for to in self.others:
                    effects += self._give(to) if to not in self.open else [self._transfer(to)]
                return effects
            case MessageReceived(sender=sender, message=Transfer() as transfer):
                effects = []
                share = transfer.share
                if share.seq == self.taken.get(sender, 0) + 1:
                    effects += self._write(["took", sender, share.seq, int(share.payload)])
                ack = Ack(group="", taken=self.taken.get(sender, 0), round=0)
                return [*effects, Send(sender, ack, 1, 1)]
            case MessageReceived(sender=sender, message=Ack(taken=taken)):
                if taken == self.made.get(sender, 0) and sender in self.open:
                    return self._write(["acked", sender])
            case Trained():
                self.trained += 1
        return []

    def _give(self, to: str) -> list[Effect]:
        amount = self.balance // (len(self.others) + 2) + self.life
        return [*self._write(["gave", to, amount]), self._transfer(to)]

    def _write(self, entry: list[int | str]) -> list[Effect]:
        self.apply(entry)
        return [Persist("entry", entry)]

    def _transfer(self, to: str) -> Send:
        return Send(to, _transfer(self.made[to], self.open[to]), 1, 1)


def _transfer(seq: int, amount: int) -> Transfer:
    payload = torch.tensor([amount])
    return Transfer(group="", share=NumberedTransfer(seq=seq, round=0, exchange=0, weight=1, form="", payload=payload))


def recovered(me: str, peers: Sequence[str], kept: Recovered, hasty: bool = False) -> Bank:
    bank = Bank(me, [peer for peer in peers if peer != me], hasty)
    assert kept.snapshot is None
    for entry in kept.entries:
        bank.apply(json.loads(entry))
    return bank


def encode(sender: str, send: Send) -> bytes:
    match send.message:
        case Transfer(share=NumberedTransfer(seq=seq, payload=payload)):
            return struct.pack("<cQq", b"T", seq, int(payload))
        case Ack(taken=taken):
            return struct.pack("<cQ", b"A", taken)
    raise AssertionError(send.message)


def decode(receiver: str, machine: Machine, sender: str, data: bytes) -> MessageReceived | tuple[Rejection, bytes]:
    match data[:1]:
        case b"T":
            _, seq, amount = struct.unpack("<cQq", data)
            return MessageReceived(sender, 1, 1, _transfer(seq, amount))
        case b"A":
            return MessageReceived(sender, 1, 1, Ack(group="", taken=struct.unpack("<cQ", data)[1], round=0))
    return Rejection("not_fedpeer", sender=sender), b"refused"


def work(peer: str, effect: Work) -> Event:
    assert isinstance(effect, Train)
    return Trained(effect.round, effect.x_n, effect.s_k)


def fact(peer: str, effect: Effect) -> object:
    match effect:
        case Persist(content=["took", sender, seq, _]):
            return "took", sender, seq
    return None


def driver(peers: Sequence[str], hasty: bool = False) -> Driver:
    lives = Counter[str]()

    def start(peer: str, kept: Recovered) -> Bank:
        lives[peer] += 1
        bank = recovered(peer, peers, kept, hasty)
        bank.life = lives[peer]
        return bank

    return Driver(
        start=start,
        save=lambda peer, persist: json.dumps(persist.content).encode(),
        encode=encode,
        decode=decode,
        work=work,
        fact=fact,
    )


def total(banks: Sequence[Bank]) -> int:
    """Return the sum of all coins: in balances, and in transit (given by the sender, not yet taken by the receiver)."""
    by_name = {bank.me: bank for bank in banks}
    return sum(bank.balance for bank in banks) + sum(
        amount
        for bank in banks
        for to, amount in bank.open.items()
        if by_name[to].taken.get(bank.me, 0) < bank.made[to]
    )
