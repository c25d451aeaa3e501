"""A whole peer. `core/` is its machine and what a federation agrees on (pure); what real peers add has rooms of its own."""
