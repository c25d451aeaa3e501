"""Algorithms with a server: a coordinator opens a round, clients train, the coordinator closes the round.

This adds a server to the contract of a peer (`contract.py`). The algorithm does not know which peer coordinates, which
clients answered, or how messages travel. The server's state between rounds is a `Server`.

One round:

1. `participants` draws the clients that take part.
2. They receive the broadcast that `open` makes, and each sends the update that `train` makes.
3. `close` makes the next server state from the updates that arrived. Under an aggregation goal these may belong to
   earlier rounds (`buffered.py`), and `rebased` makes them updates of this round.
4. Each client that trained decides in `settle` what it keeps. Its update may have counted, or arrived too late, or not
   been meant for sending (`everyone_trains`).

The result of a round is the same to the last bit, whatever the order in which the updates arrive: `close` gets them in
the order of the peers' ids, and they are summed one after the other in float64 (`weighted_mean`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor

from fedpeer.algorithms.contract import Algorithm, Sharing
from fedpeer.algorithms.draws import Draws
from fedpeer.algorithms.leaves import leaves_of
from fedpeer.algorithms.precision import widest
from fedpeer.algorithms.registry import taking_part
from fedpeer.rejection import Rejection

Server = TypeVar("Server")
Client = TypeVar("Client")
_Broadcast = TypeVar("_Broadcast")
Update = TypeVar("Update")


class AlgorithmError(ValueError):
    """An algorithm cannot be built with these settings; the message gives the reason and the way out."""


class CoordinatedAlgorithm(Algorithm[Client, _Broadcast, Update], Protocol[Server, Client, _Broadcast, Update]):
    """A server and its clients, which receive its broadcast (without leading dimensions) and send updates.

    everyone_trains   whether clients that do not take part in a round train too, without sending; default False
    common_start      whether server and clients must start from the same parameters; default False
    counts            leaves of an update that are numbers of examples: whole, at least 1 (`updates.py`)
    positive          leaves of an update whose numbers are all above 0, such as precisions
    moved             leaves of an update that replace the broadcast's leaf of the same name and shape, so that the
                      client's change is their difference; an update that consists of these and of counts can be made
                      private (`private.py`)
    fixed_clients     whether the server's state has a place for each client, so that no client can join or leave for
                      good; default False
    numbered          name of the update's leaf that is the client's number; "" (default): no such leaf
    takes_mean        whether `close` uses the context's mean of the updates, so that another rule can replace it;
                      default True
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
        """Return the server's state before the first round, for initial parameters (n,)."""
        ...

    def participants(self, round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
        """Return the numbers of the clients that take part in a round, ascending.

        By default a share of all clients is drawn uniformly, at least one. The draw depends only on the stream (seed,
        round, "participants"), so every peer computes it without a message.

        Args:
            round: 1, 2, ...
            clients: N, number of all clients.
            share: in (0, 1].
            draws: the run's randomness.
        """
        return same_draws(round, clients, share, draws)

    def open(self, server: Server, round: int) -> _Broadcast:
        """Return the broadcast of round 1, 2, ... to all clients that train, without leading dimensions."""
        ...

    def rebased(self, server: Server, updates: Update, round: int, age_K: Tensor) -> Update:
        """Return the updates (K, ...) as if their clients had trained from the broadcast of this round.

        Called before `close`. By default they stay as they are: all of them belong to the round.

        Args:
            age_K: (K,) int64, rounds between each client's broadcast and this one's; 0 where a round takes its own
                updates only.
        """
        return updates

    def changes(self, broadcast: Any, updates: Update) -> Mapping[str, Tensor]:
        """Return the change that each update makes, (K, ...) by leaf; `learning.farthest` compares their lengths.

        By default these are the leaves in `moved` less the broadcast's, and all other leaves as they are, except
        integers, counts and precisions.
        """
        was, sent = leaves_of(broadcast), leaves_of(updates)
        others = (*self.counts, *self.positive)
        found = {name: leaf for name, leaf in sent.items() if leaf.is_floating_point() and name not in others}
        return {
            name: leaf.to(widest(leaf.device)) - was[name] if name in self.moved else leaf
            for name, leaf in found.items()
        }

    def close(self, server: Server, updates: Update) -> Server:
        """Return the server's state after the round, from the K >= 1 arrived updates, (K, ...) in order of peers."""
        ...

    def settle(self, before: Client, trained: Client, server: Server, counted: Tensor) -> Client:
        """Return the states that clients (...) keep after a round in which they trained.

        Args:
            before: the states before the round.
            trained: the states that `train` returned.
            server: the server's state after the round.
            counted: (...) bool, whether the client's update is part of the round. Where it is not, state that must
                agree with the server's has to stay as it was `before`.
        """
        return trained

    def running_statistics(self) -> Tensor | None:
        """Return which numbers of each leaf in `moved` are running statistics, (D,) bool; None (default): none.

        They are averaged as they are (`running_statistics.py`), so no change of them is sent or gets noise.
        """
        return None

    def server_fault(self, server: Server) -> Rejection | None:
        """Return why a server state that another peer claims to have computed is invalid; None where it is valid.

        Its numbers are known to be finite. By default every such state is valid.
        """
        return None

    def server_model(self, server: Server) -> Tensor | None:
        """Return the model that the server would give to a newcomer (S, GM), (n,), or None."""
        ...

    def personal_model(self, client: Client) -> Tensor:
        """Return the model that each client predicts with (MT, PM), (..., n): its initial one until it first trains."""
        ...

    def relations(self, server: Server) -> Tensor | None:
        """Return how related the clients' tasks are, (N, N) in [-1, 1], where the algorithm learns it; else None."""
        return None


def has_server(algorithm: Algorithm[Any, Any, Any]) -> TypeGuard[CoordinatedAlgorithm[Any, Any, Any, Any]]:
    """Return whether an algorithm has a server."""
    return callable(getattr(algorithm, "close", None))


def same_draws(round: int, clients: int, share: float, draws: Draws) -> tuple[int, ...]:
    """Return the numbers of the clients that take part in a round, ascending: a share of all, drawn uniformly."""
    drawn = draws.numpy("participants", round=round).choice(clients, taking_part(clients, share), replace=False)
    return tuple(sorted(int(number) for number in drawn))


def where(counted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return the new rows (..., n) of the clients that counted (...), and the old rows of the others."""
    return torch.where(counted.reshape(*counted.shape, *[1] * (new.dim() - counted.dim())), new, old)


def weighted_mean(values_KD: Tensor, weights_K: Tensor) -> Tensor:
    """Return sum(weight * value) / sum(weight), (D,) in the type of values_KD; weights are >= 0 and not all 0.

    The rows are summed in float64, one after the other, so that neither threads nor vector units change the last bit.
    """
    wide = widest(values_KD.device)
    shares_K = weights_K.to(wide) / weights_K.to(wide).sum()
    total_D = torch.zeros_like(values_KD[0], dtype=wide)
    for value_D, share in zip(values_KD, shares_K, strict=True):
        total_D += share * value_D
    return total_D.to(values_KD.dtype)


def uniform_mean(values_KD: Tensor) -> Tensor:
    """Return the unweighted mean, (D,) in the type of values_KD, summed as in `weighted_mean`."""
    return weighted_mean(values_KD, torch.ones(len(values_KD), device=values_KD.device))
