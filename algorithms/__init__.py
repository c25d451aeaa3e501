"""Learning as functions of state: contracts, local training, losses, draws. Pure: no IO, no clock, no gossip."""
