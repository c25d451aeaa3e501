"""A peer's dashboard: a listener for people, separate from the peer port, and the page that it serves."""
