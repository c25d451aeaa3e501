"""Choice of the contract with which a peer continues: its state's, its federation file's or the newest signed one.

A state keeps the contract that is in force. The file on this machine may have been replaced by an update, or changed by
hand; changes by hand are rejected, key by key, before anything is started.
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

#: Logged when a peer continues with a state from before version 0.3.
_OLDER_STATE = (
    "the state was saved by an earlier release, with only a digest of its contract: the peer continues with the "
    "federation file, since the shapes match"
)


@dataclass(frozen=True)
class ContinuationPlan:
    """The contract with which a peer continues.

    federation   federation of the contract in force
    held         the contract in force, as the peer's state will keep it
    signed       newest contract signed by the authority that this machine knows; it may not be in force yet
    remark       note for the log; "": none
    """

    federation: Federation
    held: HeldContract
    signed: SignedContract | None = None
    remark: str = ""


def going_on(folder: Path, file: Federation, signed: SignedContract | None) -> ContinuationPlan:
    """Return the contract with which the peer of this state folder continues, given this federation file.

    Without a state the newest signed contract is in force; otherwise the state's, and the node switches to a later one
    when that is due.

    Raises:
        SnapshotForeignError: the file was changed by hand; the message names each key, both values and the way out.
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
    # From now on the file of an update counts as this machine's: a key that a later file drops is as in any new file.
    held = held if differing else replace(held, file=named(file))
    return ContinuationPlan(federation_of(json.loads(held.text), file), held, signed)


def state_of(folder: Path) -> dict[str, Any] | None:
    """Return the fields of the newest readable snapshot in this folder, without its tensors; None if there is none."""
    found = [path for path in (folder / "snapshots").glob("*.snapshot") if path.stem.isdigit()]  # as the store does
    for path in sorted(found, reverse=True):
        try:
            fields = beginning(path)
        except (FrameError, DamagedError, OSError):
            continue
        return fields
    return None
