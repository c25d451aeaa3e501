"""A federation on the disk, as `fedpeer init` makes it, for tests that read a peer's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpeer.config.peer_file import DataSettings
from fedpeer.peer.runtime.peer_folder import make_federation, new_peer

FEDERATION = "name: wards\nnetwork: mlp:2+5+2\n"


def federation_on_disk(folder: Path, data: dict[str, Any], federation: str = FEDERATION) -> Path:
    """Make a federation of two peers on this machine, and return the path of the first peer's file."""
    settings = DataSettings.model_validate(data)
    peers = [new_peer(f"peer{n}", "127.0.0.1", 7400 + n, settings, "127.0.0.1") for n in (1, 2)]
    make_federation(folder, "wards", federation, peers)
    return folder / "peer1" / "peer1.yaml"
