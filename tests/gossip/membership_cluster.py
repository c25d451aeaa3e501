"""A small simulator for tests of channels: peers that only average, and a network that loses, repeats, delays and cuts.

One seed decides everything. These are not full peers: they do not train or save. The simulator decides what a message
is and when it arrives; `gossip/transfers.py` decides what a transfer does to masses and channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedpeer.gossip import incarnations, transfers
from fedpeer.gossip.mass import Mass
from fedpeer.gossip.reductions import Form
from fedpeer.gossip.transfers import Incoming, NumberedTransfer, Outgoing, TransferDecision
from fedpeer.topology.graphs import GRAPHS, Builder
from fedpeer.topology.overlay import overlay

Edge = tuple[str, str]
REGULAR: Builder = partial(GRAPHS["k-regular"], degree=4)


@dataclass(frozen=True)
class Letter:
    """A share, or an acknowledgement (a number), with the incarnations of both ends as the sender knows them."""

    edge: Edge
    incarnations: tuple[int, int]
    content: NumberedTransfer | int


@dataclass
class Weather:
    """Faults that the network applies to each letter. `cut`: directed edges on which nothing passes."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_max: int = 0
    cut: frozenset[Edge] = frozenset()


class TransferSimulator:
    """A simulator of the peers "0", "1", ..., 5 to 16 unless given; values are standard normal, weights are 1."""

    def __init__(
        self, seed: int, form: Form, *, peers: int | None = None, length: int = 5, graph: Builder = REGULAR
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.form, self.length = form, length
        self.peers = [str(n) for n in range(peers or int(self.rng.integers(5, 17)))]
        self.overlay = overlay(graph, self.peers, self.rng)
        union = self.overlay.union.to_undirected()
        self.near = {p: [self.peers[j] for j in sorted(union.neighbors(i))] for i, p in enumerate(self.peers)}
        self.x = {p: torch.from_numpy(self.rng.standard_normal(length)) for p in self.peers}
        self.held = {p: Mass.of(x_D) for p, x_D in self.x.items()}
        self.put = dict.fromkeys(self.peers, 1.0)
        self.written_off = dict.fromkeys(self.peers, 0.0)
        self.incarnation = dict.fromkeys(self.peers, 1)
        self.known = {(p, q): 1 for p in self.peers for q in self.near[p]}  # the incarnation by which p knows q
        self.out = {(p, q): Outgoing() for p in self.peers for q in self.near[p]}
        self.into = {(p, q): Incoming() for p in self.peers for q in self.near[p]}  # at q, from p
        self.weather, self.now = Weather(), 0
        self.mail: dict[int, list[Letter]] = {}
        self.verdicts: Counter[str] = Counter()

    def storm(self, share: float = 1.0) -> None:
        """Start faults: loss and repeats up to 30 %, delays up to 20 rounds, some edges cut in one direction."""
        edges = [edge for edge in self.out if self.rng.random() < 0.15 * share]
        loss, repeat = self.rng.random(2) * 0.3 * share
        self.weather = Weather(loss, repeat, int(self.rng.integers(0, 21) * share), frozenset(edges))

    def heal(self) -> None:
        """Stop the faults; each letter in transit arrives now or is dropped."""
        self.weather = Weather()
        late, self.mail = [letter for due in self.mail.values() for letter in due], {}
        self.mail[self.now] = [letter for letter in late if self.rng.random() < 0.5]

    def step(self, *, give: bool = True) -> None:
        """Run a round: each peer gives and repeats open transfers; due letters arrive in any order and are answered."""
        for peer in self.peers:
            if give:
                self._give(peer)
            for near in self.near[peer]:
                for share in self.out[peer, near].open:
                    self._post(peer, near, share)
        while due := self.mail.pop(self.now, []):
            for place in self.rng.permutation(len(due)):
                self._deliver(due[place])
        self.now += 1

    def settle(self) -> None:
        """Run without new transfers until none is open; after `heal` this takes WINDOW rounds."""
        for _ in range(transfers.WINDOW + 1):
            self.step(give=False)
        assert not any(channel.open for channel in self.out.values())

    def everything(self, peers: Iterable[str] | None = None) -> Mass:
        """Return the mass that these peers hold plus that of their open transfers that are not yet taken.

        An open transfer counts as what its sender would get back if the receiver were gone.
        """
        total = Mass.of(torch.zeros(self.length), 0.0)
        for peer in peers or self.peers:
            total = total + self.held[peer]
            for near in self.near[peer]:
                channel, _ = transfers.acknowledged(self.out[peer, near], self.into[peer, near].taken, self.form)
                total, _ = incarnations.reopened(total, channel, Incoming(), self.form)
        return total

    def distance(self) -> float:
        """Return the largest error of any estimate, against the mean of the initial values."""
        mean_D = torch.stack(list(self.x.values())).mean(0)
        return max(float((mass.estimate_D - mean_D).abs().max()) for mass in self.held.values())

    def _give(self, peer: str) -> None:
        mine = [self.out[peer, near] for near in self.near[peer]]
        if transfers.exhausted(self.held[peer], 1.0) or transfers.overdrawn(self.held[peer], mine):
            return
        channels = {q: self.out[peer, q] for q in self.near[peer] if not transfers.resting(self.out[peer, q])}
        fraction = 1 / (len(self.near[peer]) + 1)
        self.held[peer], channels, _ = transfers.give(
            self.held[peer], channels, fraction, self.form, (self.now, 0), self.rng
        )
        for near, channel in channels.items():
            self.out[peer, near] = channel

    def _post(self, source: str, target: str, content: NumberedTransfer | int) -> None:
        letter = Letter((source, target), (self.incarnation[source], self.known[source, target]), content)
        if letter.edge in self.weather.cut:
            return
        for _ in range(1 + (self.rng.random() < self.weather.repeat)):
            if self.rng.random() >= self.weather.loss:
                due = self.now + int(self.rng.integers(0, self.weather.delay_max + 1))
                self.mail.setdefault(due, []).append(letter)

    def _deliver(self, letter: Letter) -> None:
        source, me = letter.edge
        spoken, to = letter.incarnations
        stale = incarnations.fence(spoken, self.known[me, source]) or incarnations.fence(to, self.incarnation[me])
        if stale:
            self.verdicts[stale] += 1
        elif isinstance(letter.content, int):
            channel = self.out[me, source]
            self.out[me, source], receipt = transfers.acknowledged(channel, letter.content, self.form)
            self.verdicts[f"ack {receipt}"] += 1
        else:
            self._judged(source, me, letter.content)

    def _judged(self, source: str, me: str, share: NumberedTransfer) -> None:
        channel = self.into[source, me]
        verdict = transfers.judge(channel, share)
        self.verdicts[verdict] += 1
        if verdict is TransferDecision.TAKE:
            self.into[source, me], mass = transfers.take(channel, share, self.form, self.length)
            self.held[me] = self.held[me] + mass
        if verdict in (TransferDecision.TAKE, TransferDecision.REPEATED):
            self._post(me, source, self.into[source, me].taken)
