"""The world of one seed: the data set, its split among the peers, and what `learning.assembly` makes of the settings.

Mistakes of the user that show only once data and network are present are raised here, before any worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from fedpeer.config.choice import Choice
from fedpeer.config.settings import FederationSettings
from fedpeer.data.dataset import Dataset, Split
from fedpeer.data.held import PeerExamples, held
from fedpeer.data.own.code import imported
from fedpeer.learning.assembly import Assembly, DataShape, assemble
from fedpeer.learning.class_weights import check_class_names
from fedpeer.learning.groups import plan_for
from fedpeer.learning.holdings import dataset_split, normalisation_of, rule_of, trained_of
from fedpeer.learning.pretrained import build_pretrained
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True, kw_only=True)
class World(Assembly):
    """One seed's federation, ready to be trained by any method.

    federation     all open settings are filled in, including those that only simulations read
    """

    dataset: Dataset
    split: Split
    peers: tuple[str, ...]

    def held(self, peer: int) -> PeerExamples:
        """Return the examples of peer number `peer` (0, 1, ...)."""
        normalise = self.federation.simulation.normalise
        assert normalise is not None, "filled in by `build`"
        return held(self.dataset, self.split, peer, normalise)


def build_world(
    federation: FederationSettings,
    dataset: Dataset,
    seed: int,
    module: nn.Module | None = None,
    code: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> World:
    """Split the data, build the network (unless `module` is given), trace it, and fill in open settings.

    Args:
        code: functions that came as Python objects, by the names that the settings give them.
    """

    def load(name: str) -> Callable[..., Any]:
        return code[name] if name in code else imported(name)

    split = dataset_split(dataset, federation, seed)
    assembly = assemble(
        federation,
        DataShape.of(dataset),
        seed,
        load,
        module=module,
        trained=trained_of(federation.learning),
        pretrained=build_pretrained,
    )
    check_class_names(federation.learning, dataset.classes)
    peers = tuple(f"peer{number}" for number in range(1, len(split.shares) + 1))
    options = federation.simulation
    simulation = {
        "peers": len(peers),
        "split": rule_of(dataset, federation),
        "normalise": options.normalise or normalisation_of(dataset, options.dataset),
    }
    filled = assembly.federation.model_copy(update={"simulation": options.model_copy(update=simulation)})
    return World(**{**vars(assembly), "federation": filled, "dataset": dataset, "split": split, "peers": peers})


def plan_of(world: World, algorithm: Choice) -> Plan:
    """Return the plan of this algorithm: who averages what."""
    return plan_for(world.federation, world.network, world.peers, algorithm)
