"""Automatic assignment: how the federation file sets up partial models whose members the peers find themselves."""

from __future__ import annotations

from fedpeer.algorithms.assignment import ASSIGNMENTS, ClusteringSettings
from fedpeer.config.choice import call_choice, parse_choice
from fedpeer.config.settings import FederationSettings

#: Mistakes that only a compiled plan shows for certain.
NOBODY_SHARES = (
    "peers meet, and are compared, by what all of them average; add a partial model that everyone implements"
)
NOTHING_TO_SHARE = "its groups would have nothing to average; give it neurons or modules"


def clustering_settings_of(federation: FederationSettings, name: str) -> ClusteringSettings:
    """Return the settings by which the members of this partial model are found.

    Raises:
        AssignmentError, ChoiceError: unknown settings, or values out of their range.
    """
    clustering: ClusteringSettings = call_choice(
        parse_choice(str(federation.partial_models[name].members)), ASSIGNMENTS, "assignment"
    )()
    return clustering
