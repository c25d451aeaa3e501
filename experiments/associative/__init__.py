"""The associative demonstration: peers complete patterns, some of which only other peers learnt."""
