"""Real peers as an engine: processes of this machine that talk over TLS, watched from outside."""
