"""The world of one seed: the data set, its split among the peers, and the settings' assembly (`learning.assembly`).

Mistakes of the user that show only once data and network are present are raised here, before any worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import nn

from fedpeer.config.choice import Choice, ChoiceError
from fedpeer.config.settings import FederationSettings
from fedpeer.data.dataset import Dataset, Split
from fedpeer.data.held import PeerExamples, held
from fedpeer.data.own.code import loader_with
from fedpeer.learning.assembly import Assembly, DataShape, assemble
from fedpeer.learning.class_weights import check_class_names
from fedpeer.learning.groups import plan_for
from fedpeer.learning.holdings import dataset_split, normalisation_of, rule_of, trained_of
from fedpeer.learning.pretrained import build_pretrained
from fedpeer.slicing.network import NetworkMap
from fedpeer.slicing.plan import Plan


@dataclass(frozen=True, kw_only=True)
class World(Assembly):
    """One seed's federation, ready to be trained by any method.

    federation     all open settings are filled in, including those that only simulations read
    own            the assemblies of peers with networks of their own; those with the same network share one
    """

    dataset: Dataset
    split: Split
    peers: tuple[str, ...]
    own: Mapping[str, Assembly] = field(default_factory=dict)

    def assembly_of(self, peer: str) -> Assembly:
        """Return the assembly of a peer: this world's, unless it has a network of its own."""
        return self.own.get(peer, self)

    @cached_property
    def assemblies(self) -> tuple[Assembly, ...]:
        """This world's assembly, and those of peers with networks of their own."""
        return (self, *{id(each): each for each in self.own.values()}.values())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of parameters of the peers' networks, each once, ascending."""
        return tuple(sorted({self.assembly_of(peer).layout.n for peer in self.peers}))

    @property
    def networks(self) -> dict[str, NetworkMap]:
        """Each peer's network; peers with the same one share one object."""
        return {peer: self.assembly_of(peer).network for peer in self.peers}

    def held(self, peer: int) -> PeerExamples:
        """Return the examples of peer number `peer` (0, 1, ...)."""
        normalise = self.federation.simulation.normalise
        assert normalise is not None, "filled in by `build`"
        return held(self.dataset, self.split, peer, normalise)

    def holdings(self) -> dict[str, PeerExamples]:
        """Return the examples of all peers, by id."""
        return {peer: self.held(number) for number, peer in enumerate(self.peers)}


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
    load = loader_with(code)
    split = dataset_split(dataset, federation, seed)
    shape, trained = DataShape.of(dataset), trained_of(federation.learning)

    def assembled(module: nn.Module | None = None, network: Choice | None = None) -> Assembly:
        return assemble(
            federation,
            shape,
            seed,
            load,
            module=module,
            network=network,
            trained=trained,
            pretrained=build_pretrained,
        )

    assembly = assembled(module)
    check_class_names(federation.learning, dataset.classes)
    peers = tuple(f"peer{number}" for number in range(1, len(split.shares) + 1))
    networks = federation.own_networks()
    if unknown := sorted(networks.keys() - set(peers)):
        raise ChoiceError(f"simulation.networks: there is no peer {unknown[0]}; there are {peers[0]} to {peers[-1]}")
    built = {text: assembled(network=each) for text, each in {str(each): each for each in networks.values()}.items()}
    simulation = {
        "peers": len(peers),
        "split": rule_of(dataset, federation),
        "normalise": federation.simulation.normalise or normalisation_of(dataset, federation.simulation.dataset),
    }
    filled = assembly.federation.model_copy(update={"simulation": federation.simulation.model_copy(update=simulation)})
    return World(
        **{**vars(assembly), "federation": filled, "dataset": dataset, "split": split, "peers": peers},
        own={peer: built[str(network)] for peer, network in networks.items()},
    )


def plan_of(world: World, algorithm: Choice) -> Plan:
    """Return the plan of this algorithm: which peers average which parameters."""
    return plan_for(world.federation, world.networks, world.peers, algorithm)
