"""The vector engine: all peers' parameters in one tensor, trained in blocks by worker processes or on one device.

`engine.py` leads the rounds, `tasks.py` is what a worker does, `pool.py` keeps workers alive, `workspace.py` is the
memory they share.
"""
