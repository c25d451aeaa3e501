"""Tests of the experiments, of scalar gossip at scale and of the associative demonstration."""
