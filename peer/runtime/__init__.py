"""I/O of a real peer: sockets, TLS, disk, clock, threads, and what its user sees. Decides nothing."""
