"""The activations study (source 004): the six architectures of 003 with other activations."""
