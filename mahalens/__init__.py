"""Read and build neural networks as distance measures.

The public names stand in ``__init__.pyi``, each once and sorted by room. A name loads its module on
first use, so that the command line starts without torch.

>>> import mahalens
>>> mahalens.Gaussian.__module__
'mahalens.geometry.gaussian'
"""

import lazy_loader as _lazy

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "ellipsoids":  # a module, which its room does not list among its names
        from mahalens.geometry import ellipsoids

        return ellipsoids
    return _load(name)
