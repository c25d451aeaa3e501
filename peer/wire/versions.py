"""Versions of the wire that this release speaks.

A peer speaks the newest version and the one before it. A message is declared once, as in its newest version: a field
that older versions lack says so (`wire_types.Since`), comes after the others, and has its default when a frame of an
older version arrives. Two peers settle on a version by themselves: each starts with the newest, goes down to an older
one if the other rejects that, and returns to the newest as soon as a frame of it arrives.
"""

from __future__ import annotations

#: Versions that are read and written; unrelated to the package's version.
OLDEST, NEWEST = 1, 2
VERSIONS = range(OLDEST, NEWEST + 1)

#: The capability to read heartbeats that name a leader certificate (`beat`).
SHORT_HEARTBEATS = "beat"
#: The capability to share one connection, which carries messages both ways.
LINKS = "link"
#: The capability to have connections of third peers inside that one.
CARRIES = "carry"
#: What this release can do beyond its version of the wire, sent in Hello; a peer ignores names that it does not know.
CAPABILITIES = ("proofs", SHORT_HEARTBEATS, LINKS, CARRIES)
#: Characters of such a name, and how many names are read.
CAPABILITY_LETTERS_MAX, CAPABILITIES_MAX = 24, 8
