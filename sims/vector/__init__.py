"""The vector engine: all peers' parameters in one tensor, trained in blocks by worker processes or on one device.

`engine.py` leads the rounds, of equals (`gossip_rounds.py`) or with a server (`server_rounds.py`); `tasks.py` is what a
worker does, `task_executors.py` whoever does the tasks, `pool.py` keeps workers alive, `workspace.py` is the memory
they share.
"""
