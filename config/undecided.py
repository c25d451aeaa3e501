"""Members that peers find out themselves: what a federation's file says of them, and what does not go with that."""

from __future__ import annotations

from fedpeer.algorithms.assignment import ASSIGNMENTS, AssignmentError, Seeking
from fedpeer.config.choice import ChoiceError, called, parse
from fedpeer.config.federation import Federation

#: What only a compiled plan tells for certain.
NOBODY_SHARES = "peers compare what all of them average; add a partial model that everyone implements"
NOTHING_TO_SHARE = "its groups would have nothing to average; give it neurons"


def seeking_of(federation: Federation, name: str) -> Seeking:
    """How the members of this partial model are sought.

    Raises:
        AssignmentError, ChoiceError: settings that there are not, or out of their range.
    """
    seeking: Seeking = called(parse(str(federation.partial_models[name].members)), ASSIGNMENTS, "assignment")()
    return seeking


def unfit(federation: Federation) -> str | None:
    """Why the members of the first model that is undecided cannot be sought, as far as settings tell, if so."""
    name, *more = federation.undecided
    models, learning, gossip = federation.partial_models, federation.learning, federation.gossip
    if more:
        return f"{more[0]} has members to be found too; the peers find those of one model"
    try:
        seeking = seeking_of(federation, name)
    except (AssignmentError, ChoiceError) as error:
        return str(error)
    if len(models) == 1:
        return NOBODY_SHARES
    if not models[name].neurons and not models[name].modules:
        return NOTHING_TO_SHARE
    for other in models:
        if other.startswith(name) and other[len(name) :].isdecimal():
            return f"the groups that are found will be {name}1, {name}2, ...; call {other} something else"
    if seeking.after >= learning.rounds:
        return f"after = {seeking.after} and there are {learning.rounds} rounds; write fewer"
    if gossip.drift is not None:
        return "peers that sleep do not show how they disagree; leave out gossip.drift"
    if gossip.topology.name == "edges":
        return "your own edges need not hold groups together that are not known yet; choose another topology"
    return None
