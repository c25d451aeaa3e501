"""Topology: graphs, one overlay for each averaging group, and the effect of exchanges on the average.

Pure and without torch, so that `fedpeer topology` is quick. Nothing here reads a file, and random numbers come from
generators that are passed in.
"""
