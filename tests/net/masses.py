"""The law of conservation over real peers: the mass in their state folders, when none of them runs.

Each folder is read as a peer reads it when it starts, the newest snapshot and the journal after it, but from a copy:
a start writes to the folder, and a check must change nothing.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedpeer.cli.peer_config import load_peer
from fedpeer.peer.node.node_setup import owner_of, rules_of, setup_of
from fedpeer.peer.runtime.prepared import prepare_peer
from fedpeer.peer.runtime.store import Store
from fedpeer.peer.state.durable_state import DurableState
from fedpeer.peer.state.journal import durable_state_of
from tests.reference import audit


def state_in(file: Path) -> DurableState:
    """Return the durable state of the peer with this file, as it is on its disk."""
    loaded = load_peer(file, "")
    prepared = prepare_peer(loaded.file, loaded.federation)
    assembly, me = prepared.outfit.assembly, loaded.file.id
    setup = setup_of(assembly, prepared.roster, me, nonce=0, held=prepared.going.held)
    rules = rules_of(assembly.federation, assembly.seed, me, prepared.outfit.local_task.examples, setup.held.text)
    index = {group.id: group.index_D for group in setup.peer_groups.groups.values()}
    assert loaded.file.state is not None, "whole paths, by now"
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(loaded.file.state, Path(place) / "state")
        with Store.open(Path(place) / "state") as store:
            recovered = store.recover()
            assert recovered.snapshot is not None, f"{me} has saved itself"
            return durable_state_of(recovered.snapshot, recovered.entries, rules, index, owner_of(setup))


def mass_errors(files: Sequence[Path]) -> dict[str, float]:
    """Return by group |mass - expected| / expected, where expected is the mass put in less the mass written off."""
    weights = audit.weights({file.stem: state_in(file) for file in files})
    return {group: abs(there - put) / put for group, (there, put) in weights.items()}


if __name__ == "__main__":
    print(mass_errors([Path(name) for name in sys.argv[1:]]))
