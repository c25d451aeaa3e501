"""Data sets in their official formats, users' own files, who holds what. Uses no other room, and no torch."""
