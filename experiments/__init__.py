"""Experiments at one command each: the papers' tables and figures, scalar gossip at scale, a demonstration.

What is run, what the paper printed and claims, and what held. `experiment.py` says what an experiment is; `runner.py`
plays its cells and keeps what is finished; `results.py` and `table.py` make numbers and a page of it; `claims.py` has
the sentences that are checked. An experiment is one file with an `Experiment` and one line in `registry.py`.
`scalar_gossip/` averages numbers among up to millions of peers; `associative/` is the demonstration.
"""
