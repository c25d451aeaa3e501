"""Settings: the federation's file, a peer's own file, choices with settings, and the rules that join settings."""
