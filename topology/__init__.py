"""Who talks to whom: graphs, one overlay for each averaging group, what an exchange on them does to the average.

Pure and without torch, so that `fedpeer topology` is quick. Nothing here reads a file or draws a number of its own.
"""
