"""Networks from files: exported programs, factories with weights, TorchScript.

===================  ======================================================================
:func:`load_model`   a network from a ``.pt2`` file, ``package.module:factory`` or TorchScript
:class:`LoadedModel` what it gives: the module, and what is known of its input
===================  ======================================================================

Nothing from a file is unpickled but tensors, and nothing in it is run as Python code. A factory
is the user's own code and is run.
"""

from mahalens.audit.model_files.load import load_model
from mahalens.audit.model_files.loaded import LoadedModel

__all__ = ["LoadedModel", "load_model"]
