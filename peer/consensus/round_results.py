"""What came of the work of a round, as events: a client's training, and the server or mean that a round leads to."""

from __future__ import annotations

from collections.abc import Mapping

from fedpeer.peer.state.algorithm_spec import AlgorithmSpec
from fedpeer.peer.state.events import AggregateUpdates, ClientTrained, TrainClient, UpdatesAggregated
from fedpeer.peer.wire.leaf_bytes import content_of
from fedpeer.peer.wire.tails import content_digest
from fedpeer.rejection import Rejection

#: Of a round: nobody's update is left out.
_NOBODY: Mapping[str, Rejection] = {}


def practised(job: TrainClient, client: bytes, update: bytes, spec: AlgorithmSpec) -> ClientTrained:
    """A training that led to this client and gave this update."""
    return ClientTrained(job.round, client, update, content_digest(update), spec.fault(update))


def server_result(
    job: AggregateUpdates, server: bytes, *, sound: bool, out: Mapping[str, Rejection] = _NOBODY
) -> UpdatesAggregated:
    """A round that leads to this server; `sound`: whether it is made of numbers, `out`: whose updates are left out."""
    if not sound:
        return UpdatesAggregated(job.term, job.round, None, group=job.group, out=out)
    counting = [client for client in job.updates if client not in out]
    content = content_of({**job.counted, **dict.fromkeys(counting, job.round)}, server)
    return UpdatesAggregated(job.term, job.round, content, content_digest(content), job.group, out)
