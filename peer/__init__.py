"""A whole peer. `core/` is its machine and what a federation agrees on: pure, and the same on every engine."""
