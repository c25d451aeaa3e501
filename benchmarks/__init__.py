"""fedpeer's speed beside hand-written programs for the same job, measured in the same run; see `run.py`."""
