"""Experiments, one command each: the papers' tables and figures, scalar gossip at scale, a demonstration.

An experiment states what to run, what the paper printed, and which claims to check. `experiment.py` defines it;
`runner.py` runs its cells and keeps finished ones; `results.py` and `table.py` turn them into numbers and a page;
`claims.py` makes claims that can be checked. A new experiment is one file with an `Experiment` and one line in
`registry.py`. `scalar_gossip/` averages numbers among up to millions of peers; `associative/` is the demonstration.
"""
