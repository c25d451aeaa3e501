"""A whole peer: `wire/`, `state/`, `consensus/` and `node/` are its machine, pure; `runtime/` makes it a process."""
