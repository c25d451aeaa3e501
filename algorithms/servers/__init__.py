"""Algorithms with a server, one short file each: functions over tensors behind `CoordinatedAlgorithm`."""
