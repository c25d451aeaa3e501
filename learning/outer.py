"""Outer steps of a federation: which parameters of which peer take them, and when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from fedpeer.algorithms.outer_optimizers import OUTER_OPTIMIZERS, OuterOptimizer
from fedpeer.algorithms.outer_steps import OuterRule, OuterRules
from fedpeer.config.choice import call_choice
from fedpeer.config.settings import FederationSettings
from fedpeer.learning.groups import gossip_of, said_by_models
from fedpeer.slicing.plan import Plan


def outer_of(plan: Plan, federation: FederationSettings, group: str) -> OuterOptimizer | None:
    """Return the outer optimizer of an averaging group: its partial model's, or else the federation's; None: none.

    A group between two unrelated models (`a+b`) has their optimizer if both have the same, else the federation's.

    Raises:
        ChoiceError, OuterOptimizerError: unknown name or setting, or one out of its range.
    """
    own = said_by_models(plan, federation, group, lambda model: model.outer)
    made: OuterOptimizer | None = call_choice(own or federation.learning.outer, OUTER_OPTIMIZERS, "outer optimizer")()
    return made


def takes_outer_steps(federation: FederationSettings) -> bool:
    """Return whether some slice of a federation may take outer steps."""
    choices = [federation.learning.outer, *(model.outer for model in federation.partial_models.values())]
    return any(each is not None and each.name != "none" for each in choices)


def outer_rules(plan: Plan, federation: FederationSettings) -> OuterRules | None:
    """Return the outer steps of the peers whose networks a plan knows; None: no peer takes any.

    The peers are numbered in the order of their ids.
    """
    found = dict(_rules(plan, federation))
    if not found:
        return None
    rules = list(dict.fromkeys(found.values()))
    kinds: dict[tuple[int, ...], tuple[int, NDArray[np.int8]]] = {}
    kind_P = []
    for peer in sorted(plan.local):
        groups = plan.groups_of(peer)
        # Peers of one kind share their arrays of indices (`compile_plan`).
        key = tuple(id(group.indices[peer]) for group in groups)
        if key not in kinds:
            n = len(plan.local[peer]) + sum(group.length for group in groups)
            rule_n = np.full(n, -1, dtype=np.int8)
            for group in groups:
                if group.id in found:
                    rule_n[group.indices[peer]] = rules.index(found[group.id])
            kinds[key] = (len(kinds), rule_n)
        kind_P.append(kinds[key][0])
    rule_Cn = [torch.from_numpy(rule_n) for _, rule_n in kinds.values()]
    padded_Cn = pad_sequence(rule_Cn, batch_first=True, padding_value=-1)  # networks may differ in size
    return OuterRules(tuple(rules), padded_Cn, torch.tensor(kind_P))


def _rules(plan: Plan, federation: FederationSettings) -> Iterator[tuple[str, OuterRule]]:
    for group in plan.groups:
        optimizer = outer_of(plan, federation, group.id)
        if optimizer is not None:
            yield group.id, OuterRule(optimizer, gossip_of(plan, federation, group.id).every)
