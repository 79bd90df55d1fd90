"""Published AUROC of Fashion-MNIST against MNIST (van Amersfoort et al. 2020). Needs no torch."""

from __future__ import annotations

from mahalens.studies.figure import Figure

SOURCE = "van Amersfoort et al. 2020"
# Smallest and largest are those of the paper and of an independent rerun.
_AUROC = {
    "duq": Figure(0.955, min=0.943, max=0.955),
    "ensemble": Figure(0.861, min=0.861, max=0.889),
    "softmax": Figure(0.843, min=0.837, max=0.843),
}


def published_figure(metric: str, model: str, part: str) -> Figure | None:
    """What was published for a column of a run on Fashion-MNIST.

    >>> published_figure("auroc", "duq", "fashion-mnist").mean
    0.955
    """
    if (metric, part) != ("auroc", "fashion-mnist"):
        return None
    return _AUROC.get(model)
