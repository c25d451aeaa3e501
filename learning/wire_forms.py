"""The wire encodings of shares under a contract: that of `gossip.wire`, and those of earlier contracts.

Shares made under an earlier contract may be under way for as long as a peer is away. So when the authority changes
`gossip.wire` or ends `gossip.drift` it writes the earlier encodings into the new contract, and all peers know them,
including those that join later. `gossip/successive.py` explains why they must.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpeer.config.choice import Choice, bind_settings, chain, lookup
from fedpeer.config.contract import EARLIER, Contract
from fedpeer.gossip.reductions import FORMS, NOTHING, PACKERS, Form
from fedpeer.gossip.successive import Successive


def succeeding(before: Contract, after: Contract) -> dict[str, Any]:
    """Return the contract `after` with the wire encodings of all contracts before it."""
    forms = list(before.get(EARLIER, ()))
    old, new = before["gossip"], after["gossip"]
    if old["wire"] != new["wire"]:
        forms.append(old["wire"])
    if old["drift"] is not None and new["drift"] is None:
        forms.append(NOTHING.name)
    return {**after, **({EARLIER: list(dict.fromkeys(forms))} if forms else {})}


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
