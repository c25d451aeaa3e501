"""Protocols by which peers reach an average: pure machines, without clock, sockets or draws of their own."""
