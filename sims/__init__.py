"""Simulations: the engines that run many peers on one machine, and the requests and records of their runs."""
