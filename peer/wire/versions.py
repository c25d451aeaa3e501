"""Versions of the wire: which this release speaks, and from which on a field is part of its record.

A peer speaks the newest version and the one before it. A message is declared once, as its newest version has it: a
field that older versions lack says so (`wire_types.Since`), stands behind the others, and has its default where a frame
of an older version comes. What the two ends of a link speak they find out by themselves: the newest first, an older one
with who refuses that, and the newest again as soon as a frame of it comes.
"""

from __future__ import annotations

#: The versions that are read and written; the package's version is another thing.
OLDEST, NEWEST = 1, 2
VERSIONS = range(OLDEST, NEWEST + 1)

#: What this release can do beside speaking its version, told in Hello; names that a peer does not know mean nothing to
#: it.
CAPABILITIES = ("proofs",)
#: Letters of such a name, and how many are read.
CAPABILITY_LETTERS_MAX, CAPABILITIES_MAX = 24, 8
