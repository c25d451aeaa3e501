"""What each peer sends in a round of averaging, foretold from the federation file and the network alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import traffic
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.learning.groups import averaging_of
from fedpeer.learning.wire_forms import form_of
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class Sending:
    """Traffic of one peer in one averaging, over all its groups: shares, and bytes including the overhead of each."""

    messages: int
    bytes: int


def sending(plan: Plan, federation: FederationSettings, seed: int) -> Mapping[str, Sending]:
    """What each peer of a plan sends in an averaging in which all have moved, by id.

    For forms whose length depends on the data (zstd) it is the most that there can be. A share's head and its
    acknowledgement are in it, as version 2 of the wire sends them (`docs/scaling.md`); membership is not.

    Raises:
        TopologyError, ChoiceError, NoiseError: settings that do not fit (`averaging_of`).
    """
    coordinated = federation.gossip.protocol == "coordinator"
    form = FLOAT32 if coordinated else form_of(federation.gossip.wire)
    found = dict.fromkeys(plan.peers, Sending(0, 0))
    for id, policy in averaging_of(plan, federation, seed).items():
        group = next(group for group in plan.groups if group.id == id)
        payload = form.bytes_bounds(group.length)[1]
        for peer, (messages, heads) in zip(group.members, traffic(policy, 0), strict=True):
            before = found[peer]
            found[peer] = Sending(before.messages + messages, before.bytes + heads + messages * payload)
    return found
