"""Where samples come from: drawn Gaussians and the files a user brings.

======================  ==================================================================
:func:`draw_gaussian`   a random Gaussian, drawn as in the Gaussian study
:func:`load_gaussian`   mean and covariance from a ``.json`` or ``.npz`` file
:func:`save_gaussian`   the same as a ``.json`` file that loads back exactly
:func:`stream`          independent random numbers for each purpose of a run
======================  ==================================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.data.gaussians import draw_gaussian, load_gaussian, save_gaussian
    from mahalens.data.streams import stream

__all__ = ["draw_gaussian", "load_gaussian", "save_gaussian", "stream"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "draw_gaussian": "mahalens.data.gaussians",
        "load_gaussian": "mahalens.data.gaussians",
        "save_gaussian": "mahalens.data.gaussians",
        "stream": "mahalens.data.streams",
    },
)
