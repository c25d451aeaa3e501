"""Exit codes of fedpeer's commands and of a peer's process."""

from __future__ import annotations

from typing import Final

#: A bug in fedpeer.
EXIT_OURS: Final = 1
#: A mistake of the user, or anything else that needs manual intervention.
EXIT_USERS: Final = 2
#: A problem that may pass by itself: EX_TEMPFAIL of sysexits.h.
EXIT_TEMPORARY: Final = 75
#: Stopped by Ctrl-C: 128 plus the number of SIGINT.
EXIT_STOPPED: Final = 130
