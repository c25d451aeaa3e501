"""The associative demonstration: peers complete patterns of which some were learnt by others only."""
