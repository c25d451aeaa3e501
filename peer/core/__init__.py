"""One whole peer as a machine, and what all peers of a federation agree on. Pure: no sockets, files, clock, threads."""
