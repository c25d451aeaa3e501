"""What may be set: the federation's file, a peer's own, choices with settings, and what goes together."""
