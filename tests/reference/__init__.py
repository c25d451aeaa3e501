"""Slow obvious twins of what is shipped, closed formulas, and judges of histories: what results are compared with."""
