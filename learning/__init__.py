"""From settings to what learns: data, network, averaging groups, one peer's training, trained models."""
