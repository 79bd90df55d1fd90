"""Where samples come from: drawn Gaussians and the files a user brings.

======================  ==================================================================
:func:`draw_gaussian`   a random Gaussian, drawn as in the Gaussian study
:func:`load_gaussian`   mean and covariance from a ``.json`` or ``.npz`` file
:func:`save_gaussian`   the same as a ``.json`` file that loads back exactly
======================  ==================================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.data.gaussians import draw_gaussian, load_gaussian, save_gaussian

__all__ = ["draw_gaussian", "load_gaussian", "save_gaussian"]

__getattr__, __dir__ = attach(__name__, dict.fromkeys(__all__, "mahalens.data.gaussians"))
