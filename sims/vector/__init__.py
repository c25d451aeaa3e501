"""The vector engine: all peers' parameters in one tensor, trained in blocks by worker processes or on one device.

`engine.py` leads the rounds, which are peer-to-peer (`gossip_rounds.py`) or client-server (`server_rounds.py`). Their
tasks (`tasks.py`) are run by executors (`task_executors.py`): a pool of worker processes (`pool.py`) or a device.
`workspace.py` is the memory that all of them share.
"""
