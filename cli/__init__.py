"""The command line: it checks, draws and prints. No mathematics of learning; no other package imports it."""
