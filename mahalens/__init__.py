"""Reads and builds neural networks as distance measures."""
