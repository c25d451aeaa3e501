"""Predicts what each peer sends in a round of averaging from the federation file and the network alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.averaging import traffic
from fedpeer.gossip.reductions import FLOAT32
from fedpeer.learning.groups import averaging_of, gossip_of
from fedpeer.learning.wire_forms import form_of
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True)
class Sending:
    """Traffic of one peer in one averaging over all its groups: number of shares, and bytes including overhead."""

    messages: int
    bytes: int


def rhythms(plan: Plan, federation: FederationSettings, seed: int) -> Mapping[int, tuple[str, ...]]:
    """Return the ids of the groups by the number of rounds from one averaging to the next, the most frequent first."""
    found: dict[int, tuple[str, ...]] = {}
    for id, policy in averaging_of(plan, federation, seed).items():
        found[policy.every] = (*found.get(policy.every, ()), id)
    return dict(sorted(found.items()))


def sending(
    plan: Plan, federation: FederationSettings, seed: int, groups: Collection[str] | None = None
) -> Mapping[str, Sending]:
    """Return what each peer of a plan sends in an averaging that all peers take part in, by peer id.

    Args:
        groups: ids of the groups that average; None: all.

    For encodings whose length depends on the data (zstd) the result is an upper bound. It includes the header and the
    acknowledgement of each share, as version 2 of the wire sends them (`docs/scaling.md`), but not membership.

    Raises:
        TopologyError, ChoiceError, NoiseError: settings that do not fit (`averaging_of`).
    """
    found = dict.fromkeys(plan.peers, Sending(0, 0))
    for id, policy in averaging_of(plan, federation, seed).items():
        if groups is not None and id not in groups:
            continue
        group = next(group for group in plan.groups if group.id == id)
        form = FLOAT32 if policy.coordinator is not None else form_of(gossip_of(plan, federation, id).wire)
        payload = form.bytes_bounds(group.length)[1]
        for peer, (messages, heads) in zip(group.members, traffic(policy, 0), strict=True):
            before = found[peer]
            found[peer] = Sending(before.messages + messages, before.bytes + heads + messages * payload)
    return found
