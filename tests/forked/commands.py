"""Import this before forking, and programs find the tree of fedpeer's commands made: building it is a third of a short
one's work."""

from __future__ import annotations

from fedpeer.cli import main

main._command()
