"""Scalar gossip at scale: up to millions of peers average numbers, without tensors or networks."""
