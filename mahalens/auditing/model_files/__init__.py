"""Networks from files: exported programs, factories with weights, TorchScript.

=====================  ====================================================================
:func:`load_model`     a network from a ``.pt2`` file, ``package.module:factory`` or TorchScript
:func:`load_fitting`   the same, with the shape in which it takes given samples
:func:`shapes_to_try`  the shapes in which a network may want samples
:class:`LoadedModel`   what it gives: the module, and what is known of its input
=====================  ====================================================================

Nothing from a file is unpickled but tensors, and nothing in it is run as Python code. A factory
is the user's own code and is run.
"""

from mahalens.auditing.model_files.fitting import load_fitting, shapes_to_try
from mahalens.auditing.model_files.load import load_model
from mahalens.auditing.model_files.loaded import LoadedModel

__all__ = ["LoadedModel", "load_fitting", "load_model", "shapes_to_try"]
