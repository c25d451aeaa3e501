"""The processes engine: real peers on this machine that communicate over TLS and are watched from outside."""
