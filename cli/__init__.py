"""The command line: words in, words out. Checks, draws and tells; no learning mathematics; no other room imports it."""
