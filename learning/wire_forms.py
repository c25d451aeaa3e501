"""How shares travel by a contract: in the form of `gossip.wire`, and in those of the contracts before it.

Shares that were made by an earlier contract may be under way for as long as somebody is away. So the authority writes
the earlier forms into a contract when it changes `gossip.wire` or ends `gossip.drift`, and all know them alike, those
too who come in later. `gossip/successive.py` says why they must.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpeer.config.choice import Choice, bind_settings, chain, lookup
from fedpeer.config.contract import EARLIER, Contract
from fedpeer.gossip.reductions import FORMS, NOTHING, PACKERS, Form
from fedpeer.gossip.successive import Successive


def succeeding(before: Contract, after: Contract) -> dict[str, Any]:
    """Return the contract that follows another one, with the forms of all before it."""
    forms = list(before.get(EARLIER, ()))
    old, new = before["gossip"], after["gossip"]
    if old["wire"] != new["wire"]:
        forms.append(old["wire"])
    if old["drift"] is not None and new["drift"] is None:
        forms.append(NOTHING.name)
    return {**after, **({EARLIER: list(dict.fromkeys(forms))} if forms else {})}


def form_of(wire: Sequence[Choice]) -> Form:
    """Return how values travel, from `gossip.wire`.

    Raises:
        ChoiceError, FormError: a form that is not known, or its settings are out of range.
    """
    first, *packers = wire
    function = lookup(first, FORMS, "form")
    form = function(**bind_settings(first, function))
    for each in packers:
        packer = lookup(each, PACKERS, "form")
        form = packer(**bind_settings(each, packer))(form)
    return form


def form_after(wire: Sequence[Choice], earlier: Sequence[str]) -> Form:
    """Return the same where shares may be under way in earlier forms.

    Raises:
        ChoiceError, FormError: as `form_of`.
    """
    before = tuple(form_of(chain(text)) for text in earlier if text != NOTHING.name)
    return Successive(form_of(wire), before) if before else form_of(wire)
