"""Data sets in official formats, users' own files, and splits. Imports no other package of fedpeer and no torch."""
