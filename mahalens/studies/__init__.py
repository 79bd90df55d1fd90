"""The studies that test the theory: one module each, and one runner, recorder and folder for all.

``torch`` is loaded when it is first used, because the command line reads studies without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()
