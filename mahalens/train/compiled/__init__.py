"""The compiled engine: chains trained without leaving the processor's cache.

The machine's compiler builds its C++ on first use and stores the result in the user's cache folder.
Without a compiler, or with ``MAHALENS_COMPILE=0``, torch computes the same.
"""

from mahalens.train.compiled.build import library, why_not
from mahalens.train.compiled.engine import CompiledEngine

__all__ = ["CompiledEngine", "library", "why_not"]
