"""Runs: the folder of a run, the index of all runs, and the report with its pictures. Independent of learning.

Modules are imported one by one, so that listing runs loads neither matplotlib nor torch.
"""
