"""fedpeer's speed compared with hand-written programs for the same job, measured in the same run; see `run.py`."""
