"""The ray engine: the peers of the vector engine spread over the processes of a Ray cluster, with the same numbers.

`cluster.py` joins or starts the cluster, `shard.py` is what an actor does, `shards.py` keeps actors alive,
`ray_worker_pool.py` gives them the vector engine's tasks and remembers how a round left them. `sweep.py` spreads whole
runs, those of one simulation (`cells.py`) or of an experiment: `remote_run.py` is what a task does, `board.py` hears
what it tells. Nothing imports these but what was asked for the ray engine; `asked.py` alone needs no Ray.
"""
