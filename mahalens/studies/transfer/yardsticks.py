"""Classifiers of other kinds to compare networks with: boosted trees and nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.data import stream
from mahalens.errors import InputError
from mahalens.studies.paired.samples import Samples
from mahalens.studies.transfer.config import TransferConfig
from mahalens.studies.transfer.samples import folds_of
from mahalens.studies.transfer.warping import warped_distances

NEIGHBOURS = (1, 3, 5, 7, 9, 15)
"""How many may vote."""
SMALL, SMALL_LEAF, LEAF = 200, 5, 20
"""Trees on fewer samples than ``SMALL`` get smaller leaves than scikit-learn's default, with which
36 samples make a single split; nothing else of the defaults is touched."""


@dataclass(frozen=True)
class Judged:
    """What a yardstick says of the samples of one trial."""

    predicted: Tensor
    """Classes of the test samples ``[M]``."""
    train_predicted: Tensor | None
    """Of the training samples; none where a sample would vote for itself."""
    probabilities: Tensor | None = None
    """Of the test samples ``[M, C]``, where it gives any."""
    neighbours: int | None = None


def boosted(config: TransferConfig, samples: Samples, trial: int) -> Judged:
    """Gradient-boosted trees as scikit-learn sets them, 100 rounds."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    seed = int(torch.randint(2**31 - 1, (1,), generator=stream(config.seed, "trees", trial)))
    trees = HistGradientBoostingClassifier(
        early_stopping=False,
        min_samples_leaf=SMALL_LEAF if len(samples.y) < SMALL else LEAF,
        random_state=seed,
    )
    trees.fit(samples.x.numpy(), samples.y.numpy())
    given = torch.from_numpy(trees.predict_proba(samples.test_x.numpy()))
    # Classes that no training sample has get no column.
    probabilities = torch.zeros(len(samples.test_y), samples.classes, dtype=torch.float64)
    probabilities[:, torch.from_numpy(trees.classes_)] = given
    return Judged(
        probabilities.argmax(1),
        torch.from_numpy(trees.predict(samples.x.numpy())),
        probabilities,
    )


def nearest(config: TransferConfig, samples: Samples, trial: int) -> Judged:
    """The k nearest neighbours in Euclidean distance; k has the best accuracy on parts held out."""
    x, y = samples.x.numpy(), samples.y.numpy()
    folds = folds_of(samples.y, stream(config.seed, "folds", trial))
    # NumPy takes a tensor of one index for the index itself, and drops the axis.
    parts = [(fold.fit.numpy(), fold.held.numpy()) for fold in folds]
    allowed = [k for k in NEIGHBOURS if k <= min(len(fit) for fit, _ in parts)]
    right = {
        k: sum(float((_vote(k, x[fit], y[fit], x[held]) == y[held]).mean()) for fit, held in parts)
        for k in allowed
    }
    k = max(allowed, key=lambda k: right[k])  # the first of equals
    predicted = _vote(k, x, y, samples.test_x.numpy())
    return Judged(torch.from_numpy(predicted), None, neighbours=k)


def warped(config: TransferConfig, samples: Samples, trial: int) -> Judged:
    """The nearest neighbour by dynamic time warping, within a tenth of the length."""
    del config, trial
    shape = samples.image_shape
    if shape is None:
        raise InputError(f"{samples.name} is no set of sequences; there is no time to warp")
    x, test_x = (part.reshape(-1, *shape) for part in (samples.x, samples.test_x))
    distances = warped_distances(test_x, x)
    return Judged(samples.y[distances.argmin(1)], None, neighbours=1)


def _vote(k: int, x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any]) -> NDArray[np.int64]:
    from sklearn.neighbors import KNeighborsClassifier

    found: NDArray[np.int64] = KNeighborsClassifier(n_neighbors=k).fit(x, y).predict(test_x)
    return found
