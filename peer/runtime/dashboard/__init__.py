"""The dashboard of one peer: a listener for people, apart from the port for peers, and the page that it serves."""
