"""Algorithms with a server, one short file each: functions over tensors that implement `CoordinatedAlgorithm`."""
