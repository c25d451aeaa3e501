"""The ray engine: the vector engine with its peers distributed over a Ray cluster, with the same numbers.

`cluster.py` joins or starts the cluster, `shard.py` is the actor, `shards.py` replaces dead actors, and
`ray_worker_pool.py` gives them the vector engine's tasks and records their states after each round. `sweep.py`
distributes whole runs, those of one simulation (`cells.py`) or of an experiment; `remote_run.py` is the task that does
one, and `board.py` collects its events. These modules are imported only for the ray engine; only `options.py` and
`board.py` work without Ray.
"""
