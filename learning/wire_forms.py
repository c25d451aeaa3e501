"""The wire encodings of shares under a contract: that of `gossip.wire`, and those of earlier contracts.

Shares made under an earlier contract may be under way for as long as a peer is away. So when the authority changes
`gossip.wire` or ends `gossip.drift` it writes the earlier encodings into the new contract, and all peers know them,
including those that join later. `gossip/successive.py` explains why they must.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpeer.config.choice import Choice, bind_settings, chain, lookup
from fedpeer.config.contract import EARLIER, EARLIER_OF_SLICES, ContractFields
from fedpeer.config.settings import FederationSettings
from fedpeer.gossip.reductions import FORMS, NOTHING, PACKERS, Form
from fedpeer.gossip.successive import Successive


def succeeding(before: ContractFields, after: ContractFields) -> dict[str, Any]:
    """Return the contract `after` with the wire encodings of all contracts before it.

    A partial model with an encoding of its own has a list of its own, from the first contract with such an encoding on.
    """
    forms, of_slices = list(before.get(EARLIER, ())), dict(before.get(EARLIER_OF_SLICES, {}))
    made = {**after}
    for name in {**before["partial_models"], **after["partial_models"]}:
        old, new = (_of_slice(each, name) for each in (before, after))
        if name in of_slices or "wire" in (*_own(before, name), *_own(after, name)):
            of_slices[name] = _succeeded(of_slices.get(name, forms), old, new)
    forms = _succeeded(forms, before["gossip"], after["gossip"])
    if any(_of_slice(before, name)["drift"] is not None for name in before["partial_models"]):
        still = any(_of_slice(after, name)["drift"] is not None for name in after["partial_models"])
        forms = forms if still or after["gossip"]["drift"] is not None else [*forms, NOTHING.name]
    if forms:
        made[EARLIER] = list(dict.fromkeys(forms))
    if of_slices:
        made[EARLIER_OF_SLICES] = of_slices
    return made


def _succeeded(forms: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the earlier encodings of groups that averaged by the settings `old`, and now average by `new`."""
    found = [*forms]
    if old["wire"] != new["wire"]:
        found.append(old["wire"])
    if old["drift"] is not None and new["drift"] is None:
        found.append(NOTHING.name)
    return list(dict.fromkeys(found))


def _own(contract: ContractFields, name: str) -> Mapping[str, Any]:
    """Return a partial model's own averaging settings; empty if it has none, or is not in this contract."""
    model = contract["partial_models"].get(name) or {}
    return model.get("gossip") or {}


def _of_slice(contract: ContractFields, name: str) -> dict[str, Any]:
    return {**contract["gossip"], **{key: value for key, value in _own(contract, name).items() if value is not None}}


def form_of(wire: Sequence[Choice]) -> Form:
    """Return the wire encoding of `gossip.wire`.

    Raises:
        ChoiceError, FormError: an unknown encoding, or a setting out of its range.
    """
    first, *packers = wire
    function = lookup(first, FORMS, "wire encoding")
    form = function(**bind_settings(first, function))
    for each in packers:
        packer = lookup(each, PACKERS, "compression")
        form = packer(**bind_settings(each, packer))(form)
    return form


def form_after(wire: Sequence[Choice], earlier: Sequence[str]) -> Form:
    """Return the wire encoding of `gossip.wire` if shares may be under way in `earlier` encodings.

    Raises:
        ChoiceError, FormError: as `form_of`.
    """
    before = tuple(form_of(chain(text)) for text in earlier if text != NOTHING.name)
    return Successive(form_of(wire), before) if before else form_of(wire)


def forms_of_slices(federation: FederationSettings, contract: ContractFields) -> dict[str, Form]:
    """Return the wire encodings of the groups that have their own, by partial model.

    Args:
        contract: the one in force, with the earlier encodings.
    """
    earlier, of_slices = contract.get(EARLIER, ()), contract.get(EARLIER_OF_SLICES, {})
    found = {}
    for name, model in federation.partial_models.items():
        own = None if model.gossip is None else model.gossip.wire
        if own is not None or name in of_slices:
            found[name] = form_after(own or federation.gossip.wire, of_slices.get(name, earlier))
    return found
