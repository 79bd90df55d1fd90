"""Starting weights."""

from mahalens.init.random import kaiming_through_samples

__all__ = ["kaiming_through_samples"]
