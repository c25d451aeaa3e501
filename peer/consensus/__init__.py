"""One group's consensus on its rounds: voters, election, round commit, the updates of a round. Pure."""
