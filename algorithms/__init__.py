"""Learning as pure functions of state: contracts, local training, losses, random draws. No IO, no clock, no gossip."""
