"""A real peer's numbers in experiment trackers: one series, which goes on after a restart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedpeer.config.choice import call_choice
from fedpeer.config.contract import contract_of
from fedpeer.peer.runtime.prepared import Prepared
from fedpeer.runs.trackers.guarded import GuardedTrackers
from fedpeer.runs.trackers.registry import TRACKERS
from fedpeer.runs.trackers.tracker import Series, flattened


class PeerTrackers:
    """The trackers of a peer's own file; nothing happens if it names none."""

    def __init__(self, prepared: Prepared, round: int) -> None:
        """Open the peer's series.

        Args:
            round: round that the peer is in.
        """
        file = prepared.file
        self._trackers = GuardedTrackers(
            {each.name: call_choice(each, TRACKERS, "tracker")() for each in file.tracking}
        )
        # The name is another person's text, and becomes a folder's name.
        group = re.sub(r"[^A-Za-z0-9_-]+", "-", prepared.federation.name)
        group = f"{group}-{prepared.roster.federation_id.hex()[:8]}"
        self._id = f"{group}/{file.id}"
        series = Series(id=self._id, name=file.id, group=group, home=prepared.folder, first=max(1, round))
        own = {"peer": file.id, "device": prepared.device, "examples": prepared.trainer.examples}
        self._trackers.open(series, own | flattened(contract_of(prepared.federation)))

    def row(self, row: Mapping[str, Any]) -> None:
        """Pass on a row of `metrics.jsonl`."""
        values = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}
        measured = {name: value for name, value in (row.get("metrics") or {}).items() if value is not None}
        self._trackers.add(self._id, {**values, **measured}, int(row["round"]))

    def warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        return self._trackers.warnings()

    def close(self) -> None:
        """End the series; may wait for some seconds."""
        self._trackers.close()
