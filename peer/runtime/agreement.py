"""By which contract a peer goes on: what its state keeps, what its federation file says, and what the authority signed.

A state keeps the contract that is in force. The file of this machine may have been replaced by that of an update, or
changed by hand; what a person changed by hand is refused, key by key, before anything is started.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpeer.config.contract import (
    HeldContract,
    changed_by_hand,
    contract_of,
    differences,
    federation_of,
    named,
    overlaid,
    refusal,
    text_of,
)
from fedpeer.config.federation import Federation
from fedpeer.peer.runtime.blocks import DamagedError
from fedpeer.peer.runtime.store import beginning
from fedpeer.peer.state.journal import SnapshotForeignError, held_of
from fedpeer.peer.wire.framing import FrameError
from fedpeer.peer.wire.signed_contract import SignedContract

#: What is logged where a state of before version 0.3 goes on.
_OLDER_STATE = (
    "the state was kept by an earlier release, with a digest of its contract only: it goes on by the federation file, "
    "since the shapes fit"
)


@dataclass(frozen=True)
class ContinuationPlan:
    """How a peer goes on.

    federation   in force
    held         the same as its state will keep it
    signed       the newest contract that the authority signed, as far as this machine knows; it may not be in force yet
    remark       what is to be said about it; "": nothing
    """

    federation: Federation
    held: HeldContract
    signed: SignedContract | None = None
    remark: str = ""


def going_on(folder: Path, file: Federation, signed: SignedContract | None) -> ContinuationPlan:
    """How the peer of this state folder goes on with this federation file.

    Where there is no state yet, the newest signed contract is in force; else the one that the state keeps, and the node
    goes over to a later one in its time.

    Raises:
        SnapshotForeignError: the file was changed, with each key, both values, and the way out.
    """
    state = state_of(folder)
    held = None if state is None else held_of(state)
    if state is None and signed is not None:
        held = HeldContract(signed.number, signed.text, named(file))
    elif held is None:
        text = text_of(contract_of(file), str(file.learning.algorithm))
        return ContinuationPlan(
            file, HeldContract(0, text, named(file)), signed, _OLDER_STATE if state is not None else ""
        )
    differing = changed_by_hand(held, file)
    if differing and (signed is None or differences(json.loads(signed.text), overlaid(held, file))):
        raise SnapshotForeignError(refusal(differing))
    # The file of an update stands here from now on: what it names and the next one does not is as in any new file.
    held = held if differing else replace(held, file=named(file))
    return ContinuationPlan(federation_of(json.loads(held.text), file), held, signed)


def state_of(folder: Path) -> dict[str, Any] | None:
    """What the newest snapshot in this folder says before its tensors; None: there is none, or it cannot be read."""
    for path in sorted((folder / "snapshots").glob("*.snapshot"), reverse=True):
        try:
            fields = beginning(path)
        except (FrameError, DamagedError, OSError):
            continue
        return fields
    return None
