"""Experiment trackers: where a run's or a peer's settings and scores go beside its own files, such as TensorBoard.

`tracker.py` has the protocol, `registry.py` the trackers by name, `guarded.py` what keeps a run safe from them. A
tracker is one file here and one line in the registry. Its library is an extra, imported when the first series is
opened.
"""
