"""What peers say as bytes: messages and their codec, admission, signed rosters and contracts. Pure."""
