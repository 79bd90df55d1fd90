"""Layers that mix Abs and ReLU units, from none to all: what the sources propose, tested."""
