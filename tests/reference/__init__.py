"""Slow obvious twins of shipped code, closed formulas, and judges of histories, with which results are compared."""
