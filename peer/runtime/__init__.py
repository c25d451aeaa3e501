"""The doors of a real peer: sockets, TLS, disk, clock, threads, and what a person sees of it. Decides nothing."""
