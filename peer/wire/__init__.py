"""The wire protocol: messages and their codec, admission checks, signed rosters and contracts. Pure."""
