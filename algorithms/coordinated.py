"""Algorithms with a server: a coordinator opens a round, clients train, the coordinator closes it.

A server is added to the contract of a peer (`contract.py`). It does not know who coordinates, who answered or how
anything travels. What it holds survives in `Server`.

A round: some take part (`participants`), are told what `open` gives, and send what `train` made of it; `close` makes
the next server of the updates that came. Whoever trained then settles what it keeps: its update counted, or came too
late or was never to be sent.

The result of a round does not depend on the order in which updates arrive, to the last bit: they are put in the order
of peers (`in_peer_order`) and summed one after the other in float64 (`weighted_mean`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor

from fedpeer.algorithms.contract import Algorithm, Sharing
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import stack_states
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.registry import taking_part
from fedpeer.rejection import Rejection

Server = TypeVar("Server")
Client = TypeVar("Client")
_Broadcast = TypeVar("_Broadcast")
Update = TypeVar("Update")


class AlgorithmError(ValueError):
    """An algorithm cannot be built with these settings; the message says why and what can."""


class CoordinatedAlgorithm(Algorithm[Client, _Broadcast, Update], Protocol[Server, Client, _Broadcast, Update]):
    """A server and its clients, who receive its broadcast, without leading dimensions, and send an update.

    everyone_trains   whether those train too who do not take part in a round; what they learn stays with them
    common_start      whether server and clients must start from the same parameters
    counts            leaves of an update that are numbers of examples: whole, at least 1 (`updates.py`)
    positive          leaves of an update all of whose numbers are above 0, such as precisions
    moved             leaves of an update that are what the broadcast's of the same name and shape became, so that the
                      client's change is their difference; an update in which these and the counts are all can be made
                      private (`private.py`)
    fixed_clients     whether the server's state has a place for each client, so that nobody can come or go for good
    numbered          the leaf of an update that is the client's number; "" where there is none
    takes_mean        whether `close` goes by the bench's mean of the updates, so that another rule can take its place
    """

    sharing: ClassVar[Sharing] = "with a coordinator"
    everyone_trains: bool = False
    common_start: bool = False
    counts: tuple[str, ...] = ("examples",)
    positive: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    fixed_clients: bool = False
    numbered: str = ""
    takes_mean: bool = True

    def start_server(self, values_n: Tensor) -> Server:
        """The server before the first round; `values_n` (n,) are the initial parameters."""
        ...

    def participants(self, round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
        """Who takes part in round 1, 2, ...: numbers of clients, ascending; a share of them drawn alike, at least one.

        The draw is of the stream (seed, round, "participants"), so everybody knows it without being told.
        """
        return drawn_alike(round, clients, share, draws)

    def open(self, server: Server, round: int) -> _Broadcast:
        """What everybody who takes part in round 1, 2, ... is told; without leading dimensions."""
        ...

    def close(self, server: Server, updates: Update) -> Server:
        """The server after the round; `updates` (K, ...) are those of the K >= 1 that came, in order of peers."""
        ...

    def settle(self, before: Client, trained: Client, server: Server, counted: Tensor) -> Client:
        """What clients (..., n) keep of a round in which they trained.

        `server` is the one after the round; `counted` (...) bool says whose update is part of it. What a client keeps
        in step with the server must stay as it was `before` where it was not.
        """
        return trained

    def server_fault(self, server: Server) -> Rejection | None:
        """What is wrong with a server of finite numbers that another peer says to have made; nothing by default."""
        return None

    def server_model(self, server: Server) -> Tensor | None:
        """(n,) the model that the server would give to a newcomer (S, GM); None where there is no such thing."""
        ...

    def personal_model(self, client: Client) -> Tensor:
        """(..., n) the model that a client uses itself (MT, PM); the initial one while it was never asked."""
        ...

    def relations(self, server: Server) -> Tensor | None:
        """(N, N) how related the clients' tasks are, between -1 and 1, where the algorithm learns it."""
        return None


def has_server(algorithm: Algorithm[Any, Any, Any]) -> TypeGuard[CoordinatedAlgorithm[Any, Any, Any, Any]]:
    """Whether an algorithm has a server."""
    return callable(getattr(algorithm, "close", None))


def drawn_alike(round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
    """Numbers of the clients that take part in a round, ascending: a share of all of them, drawn alike."""
    drawn = draws.numpy("participants", round=round).choice(clients, taking_part(clients, share), replace=False)
    return tuple(sorted(int(number) for number in drawn))


def where(counted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new rows (..., n) of those who counted (...), the old ones of the others."""
    return torch.where(counted.reshape(*counted.shape, *[1] * (new.dim() - counted.dim())), new, old)


def in_peer_order(updates: Mapping[str, Update]) -> Update:
    """The updates of single clients by peer, however they arrived, as one (K, ...) in the order of the peers' ids."""
    assert updates, "a round that nobody took part in has no result"
    return stack_states([updates[peer] for peer in sorted(updates)])


def weighted_mean(values_KD: Tensor, weights_K: Tensor) -> Tensor:
    """(D,) in the type of values_KD: sum of weight * value over sum of weights, weights >= 0 and not all of them 0.

    Summed in float64, one after the other, so that neither threads nor vector units decide the last bit.
    """
    wide = widest(values_KD.device)
    shares_K = weights_K.to(wide) / weights_K.to(wide).sum()
    total_D = torch.zeros_like(values_KD[0], dtype=wide)
    for value_D, share in zip(values_KD, shares_K, strict=True):
        total_D += share * value_D
    return total_D.to(values_KD.dtype)


def uniform_mean(values_KD: Tensor) -> Tensor:
    """(D,) in the type of values_KD: the plain mean, summed as `weighted_mean` does."""
    return weighted_mean(values_KD, torch.ones(len(values_KD), device=values_KD.device))
