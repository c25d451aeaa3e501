"""Members that peers find out themselves: what a federation's file says of them."""

from __future__ import annotations

from fedpeer.algorithms.assignment import ASSIGNMENTS, ClusteringSettings
from fedpeer.config.choice import call_choice, parse_choice
from fedpeer.config.settings import FederationSettings

#: What only a compiled plan tells for certain.
NOBODY_SHARES = "peers compare what all of them average; add a partial model that everyone implements"
NOTHING_TO_SHARE = "its groups would have nothing to average; give it neurons"


def clustering_settings_of(federation: FederationSettings, name: str) -> ClusteringSettings:
    """How the members of this partial model are sought.

    Raises:
        AssignmentError, ChoiceError: settings that there are not, or out of their range.
    """
    clustering: ClusteringSettings = call_choice(
        parse_choice(str(federation.partial_models[name].members)), ASSIGNMENTS, "assignment"
    )()
    return clustering
