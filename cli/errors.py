"""Errors as text, one screen of it on a terminal, and which exceptions are the user's mistakes.

Packages raise exceptions of their own (`SlicingError`, `DataError`, ...) whose message is already a sentence for the
user; `is_users_mistake` separates them from bugs in fedpeer, whose traceback goes to a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap

from fedpeer.config.problems import LINES_MAX, ConfigError, laid_out

#: Lines of one report on the smallest terminal: 24 less the command above it and the prompt below.
LINES_MIN = 21
#: Other packages' exceptions for the user, by name: a package that is not imported raised none, so none is imported
#: here.
_USERS_MISTAKES = {
    "fedpeer.algorithms.coordinated.AlgorithmError",
    "fedpeer.algorithms.optimizers.OptimizerError",
    "fedpeer.algorithms.own_loss.LossError",
    "fedpeer.algorithms.privacy.PrivacyError",
    "fedpeer.algorithms.byzantine.RobustError",
    "fedpeer.algorithms.assignment.AssignmentError",
    "fedpeer.data.dataset.DataError",
    "fedpeer.gossip.noise.NoiseError",
    "fedpeer.gossip.reductions.FormError",
    "fedpeer.networks.registry.NetworkError",
    "fedpeer.config.choice.ChoiceError",
    "fedpeer.peer.state.journal.SnapshotForeignError",
    "fedpeer.peer.wire.roster.RosterError",
    "fedpeer.learning.device.DeviceError",
    "fedpeer.learning.models.ModelError",
    "fedpeer.learning.program.ExportError",
    "fedpeer.peer.runtime.authority.EnrolmentError",
    "fedpeer.peer.runtime.dashboard.access.DashboardError",
    "fedpeer.peer.runtime.discovery.DiscoveryError",
    "fedpeer.peer.runtime.identity.IdentityError",
    "fedpeer.peer.runtime.listener.ListenError",
    "fedpeer.peer.runtime.store.DuplicatePeerError",
    "fedpeer.peer.runtime.store.StateError",
    "fedpeer.runs.disk.RunError",
    "fedpeer.runs.trackers.tracker.TrackingError",
    "fedpeer.slicing.models.SlicingError",
    "fedpeer.topology.graphs.TopologyError",
}

#: Exceptions whose cause may be gone at another start.
_TEMPORARY = {
    "fedpeer.peer.runtime.transient.NoAddressError",
    "fedpeer.peer.runtime.transient.PortInUseError",
}


#: Errors of a disk that is full, over a quota or read-only.
_OF_DISKS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS") if hasattr(errno, name)}


def is_users_mistake(error: BaseException) -> bool:
    """Return whether the message of this exception is a finished sentence for the user."""
    return isinstance(error, ConfigError) or bool(_names(error) & _USERS_MISTAKES)


def temporary(error: BaseException) -> str:
    """Return a sentence about an error that may pass (port in use, full disk, too little memory), or ""."""
    from fedpeer.peer.runtime.transient import short_of_memory

    if _names(error) & _TEMPORARY:
        return str(error)
    if isinstance(error, OSError) and error.errno in _OF_DISKS:
        place = "the disk" if error.filename is None else os.fsdecode(error.filename)
        return f"{place}: {error.strerror}; make room there, or let it be written, and run the same command again"
    if short_of_memory(error):
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"there is too little memory ({reason}); free some, or allow this process more, and start again"
    return ""


def forbidden(error: BaseException) -> str:
    """Return a sentence about a file or folder that this user may not use, whichever package tried to, or ""."""
    if not isinstance(error, PermissionError) or error.filename is None:
        return ""
    return f"{os.fsdecode(error.filename)}: permission denied; check the permissions of it and of its folder"


def _names(error: BaseException) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(error).__mro__}


def wrapped(text: str) -> str:
    """Wrap each line of a text to the terminal's width, and cut the text to one screen of a terminal."""
    columns, most = shutil.get_terminal_size().columns, _most_lines()
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines if len(lines) <= most else [*lines[: most - 1], "  ..."])


def report_error(error: ConfigError, width: int | None = None) -> str:
    """Return the report for this terminal, or for one of `width` columns: one screen, or all for a file or a pipe."""
    return laid_out(error, width or shutil.get_terminal_size().columns, _most_lines())


def _most_lines() -> int:
    return max(LINES_MIN, shutil.get_terminal_size().lines - 3) if sys.stderr.isatty() else LINES_MAX
