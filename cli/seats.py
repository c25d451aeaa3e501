"""What the options of `fedpeer init` say of the peers: their ids, where each will sit, and what each learns from.

All mistakes of a command line are found in one go. Nothing is written here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedpeer.cli.checks import choice_problem, peer_ids
from fedpeer.cli.errors import Problem, shown
from fedpeer.data.own import OWN
from fedpeer.peer.core.choice import ChoiceError
from fedpeer.peer.core.peer_file import DataSettings, endpoint, loopback

if TYPE_CHECKING:
    from fedpeer.peer.shell.kit import Seat

#: Peers of one `init`. Each is a machine that somebody copies a folder to.
PEERS_MAX = 1000
