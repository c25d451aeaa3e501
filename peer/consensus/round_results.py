"""Results of a round's work as events: a client's training, and the server's model or mean after the round."""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import AggregateUpdates, ClientTrained, TrainClient, UpdatesAggregated
from fedpeer.peer.wire.leaf_bytes import content_of
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection

#: Rejections of a round in which every update counts.
_NOBODY: Mapping[str, Rejection] = {}


def training_result(job: TrainClient, client: bytes, update: bytes, spec: AlgorithmSpec) -> ClientTrained:
    """Return the event of a training with this client's state and update."""
    return ClientTrained(job.round, client, update, content_digest(update), spec.fault(update))


def server_result(
    job: AggregateUpdates, server: bytes, *, sound: bool, out: Mapping[str, Rejection] = _NOBODY
) -> UpdatesAggregated:
    """Return the event of a round that ends with this server.

    Args:
        sound: whether the server has finite values only; if not, the round has no content.
        out: rejection by client whose update is left out.
    """
    if not sound:
        return UpdatesAggregated(job.term, job.round, None, group=job.group, out=out)
    counting = [client for client in job.updates if client not in out]
    rounds = {client: job.rounds.get(client, job.round) for client in counting}
    content = content_of({**job.counted, **rounds}, server)
    return UpdatesAggregated(job.term, job.round, content, content_digest(content), job.group, out)
