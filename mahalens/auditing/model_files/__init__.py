"""Networks from the user's code with weights from a file, and from programs that the user trusts.

=====================  ====================================================================
:func:`load_model`     a network from ``package.module:factory``, a ``.pt2`` file or TorchScript
:func:`load_fitting`   the same, with the shape in which it takes given samples
:func:`shapes_to_try`  the shapes in which a network may want samples
:class:`LoadedModel`   the module, and what is known of its input
=====================  ====================================================================

A factory is the user's code and is run. Files of weights are read without running anything in
them. ``.pt2`` and TorchScript files are programs and need ``trust=True``; SECURITY.md has the rest.
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.auditing.model_files.load import load_fitting, load_model, shapes_to_try
    from mahalens.auditing.model_files.loaded import LoadedModel

__all__ = ["LoadedModel", "load_fitting", "load_model", "shapes_to_try"]

_ROOM = "mahalens.auditing.model_files"
__getattr__, __dir__ = attach(
    __name__,
    {
        "LoadedModel": f"{_ROOM}.loaded",
        "load_fitting": f"{_ROOM}.load",
        "load_model": f"{_ROOM}.load",
        "shapes_to_try": f"{_ROOM}.load",
    },
)
