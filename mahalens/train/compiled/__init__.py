"""The compiled engine: chains trained without leaving the processor's cache.

Its C++ is translated by the machine's own compiler on first use and kept in the user's cache
folder. Where there is no compiler, or with ``MAHALENS_COMPILE=0``, the same is computed with torch.
"""

from mahalens.train.compiled.build import library, why_not
from mahalens.train.compiled.engine import CompiledEngine

__all__ = ["CompiledEngine", "library", "why_not"]
