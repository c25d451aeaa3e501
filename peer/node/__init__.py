"""One whole peer as a machine: `Node.step(event)` gives effects. Pure: no sockets, files, clock, threads."""
