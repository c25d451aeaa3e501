"""Builds from settings what one peer needs to learn: data, network, averaging groups; and its trained model."""
