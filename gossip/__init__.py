"""Protocols by which peers agree on an average: pure state machines that read no clock, no socket and no global RNG."""
