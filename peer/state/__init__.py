"""Knowledge of a peer: its durable state and the journal of it, and the state of a running node. Pure."""
