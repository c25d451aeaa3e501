"""One whole peer as a machine. Pure: no sockets, files, clock, threads."""
