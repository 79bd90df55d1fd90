"""Tables of real measurements that come inside scikit-learn, as labelled data."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch

from mahalens.data.labelled import LabelledData
from mahalens.errors import InputError

_LOADERS = {"iris": "load_iris", "wine": "load_wine", "breast-cancer": "load_breast_cancer"}
TEST_SHARE = 0.3


def load_table(name: str) -> LabelledData:
    """One of the tables of :data:`mahalens.data.catalogue.TABLES`, as scikit-learn has it.

    scikit-learn's rows lie in the order of their classes, so that three tenths of each class,
    drawn once and for all, are kept for testing. ``largest`` is the largest size of a value;
    features have units of their own and are standardised one by one by whoever trains on them.

    >>> load_table("wine")
    LabelledData('wine', 126 + 52 samples, inputs=13, classes=3, largest=1680)
    """
    try:
        module = import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise  # scikit-learn is there and lacks something else
        raise InputError(
            f"{name} comes with scikit-learn, which is not installed; pip install scikit-learn"
        ) from None
    bunch = getattr(module, _LOADERS[name])()
    x = torch.from_numpy(np.ascontiguousarray(bunch.data)).float()
    y = torch.from_numpy(np.ascontiguousarray(bunch.target)).long()
    test = held_out(y, TEST_SHARE, torch.Generator().manual_seed(0))
    return LabelledData(
        name=name,
        x=x[~test],
        y=y[~test],
        test_x=x[test],
        test_y=y[test],
        image_shape=None,
        largest=float(x.abs().max()),
        source=f"scikit-learn's {_LOADERS[name]}",
    )


def held_out(y: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """Which samples ``[N]`` to keep for testing: ``share`` of each class, drawn at random.

    Shares are rounded down, and a class keeps at least one sample to train with.

    >>> y = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> test = held_out(y, 0.5, torch.Generator().manual_seed(0))
    >>> y[test].tolist(), y[~test].tolist()
    ([0, 0, 1], [0, 0, 1])
    """
    chosen = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique().tolist():
        members = (y == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        chosen[members[order[: min(int(share * len(members)), len(members) - 1)]]] = True
    return chosen
