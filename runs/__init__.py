"""A run's folder, the index of all runs, and the report with pictures; draws slices and graphs, knows no learning.

Modules are imported one by one, so that listing runs loads neither matplotlib nor torch.
"""
