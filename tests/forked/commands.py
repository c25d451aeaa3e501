"""Import this before forking, so that programs find the tree of fedpeer's commands already built: building it is a
third of a short program's work."""

from __future__ import annotations

from fedpeer.cli import main

main._command()
