"""Where samples come from: drawn Gaussians, labelled data sets and the files a user brings.

=======================  ==================================================================
:func:`draw_gaussian`    a random Gaussian, drawn as in the Gaussian study
:func:`load_gaussian`    mean and covariance from a ``.json`` or ``.npz`` file
:func:`save_gaussian`    the same as a ``.json`` file that loads back exactly
:func:`draw_ellipsoids`  random ellipsoids, drawn as in the ellipsoid study
:func:`load_set`         digits, MNIST, Fashion-MNIST, CIFAR-10, tables, or a user's files
:func:`fetch_set`        bring MNIST, Fashion-MNIST, CIFAR-10 or sequences here, checked
:func:`load_series`      sequences by name or from ``.ts`` files, as channels and steps
:class:`LabelledData`    what it gives: samples with a class each, to train and to test
:func:`read_idx`         a single IDX file, plain or gzipped
:func:`read_ts`          a single ``.ts`` file of labelled series
:func:`stream`           independent random numbers for each purpose of a run
=======================  ==================================================================
"""

from typing import TYPE_CHECKING

from mahalens._lazy import attach

if TYPE_CHECKING:
    from mahalens.data.ellipsoids import draw_ellipsoids
    from mahalens.data.fetch import fetch_set
    from mahalens.data.gaussians import draw_gaussian, load_gaussian, save_gaussian
    from mahalens.data.idx import read_idx
    from mahalens.data.labelled import LabelledData
    from mahalens.data.series import load_series, read_ts
    from mahalens.data.sets import load_set
    from mahalens.data.streams import stream

__all__ = [
    "LabelledData",
    "draw_ellipsoids",
    "draw_gaussian",
    "fetch_set",
    "load_gaussian",
    "load_series",
    "load_set",
    "read_idx",
    "read_ts",
    "save_gaussian",
    "stream",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "LabelledData": "mahalens.data.labelled",
        "draw_ellipsoids": "mahalens.data.ellipsoids",
        "draw_gaussian": "mahalens.data.gaussians",
        "fetch_set": "mahalens.data.fetch",
        "load_gaussian": "mahalens.data.gaussians",
        "load_series": "mahalens.data.series",
        "load_set": "mahalens.data.sets",
        "read_idx": "mahalens.data.idx",
        "read_ts": "mahalens.data.series",
        "save_gaussian": "mahalens.data.gaussians",
        "stream": "mahalens.data.streams",
    },
)
