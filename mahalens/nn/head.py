"""A classifier for the features of any network, by distance to the prototypes of classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.geometry.checks import require_finite, tensor_of
from mahalens.nn.calibration import best_temperature, reject_threshold, require_rate
from mahalens.nn.fitting import (
    fit_mahalanobis,
    fit_offset_l2,
    labelled,
    plain_features,
    plain_labels,
)
from mahalens.nn.mahalanobis import Mahalanobis
from mahalens.nn.offset_l2 import OffsetL2
from mahalens.nn.prediction import REJECTED, Prediction
from mahalens.nn.sizes import require_sizes

METRICS = ("euclidean", "diagonal", "low-rank", "shared")
LOGITS = ("distance", "squared", "density")
SMALLEST = 1e-15
"""Squares of smaller distances have lost digits in float32."""


class DistanceHead(nn.Module):
    """Logits from distances: a sample belongs to the class whose prototype it is nearest to.

    ==============  ========================================================================
    ``metric``      how the distance d_c to the prototype μ_c is measured
    ==============  ========================================================================
    ``euclidean``   ``‖x − μ_c‖ / s``, one fixed s: 1, or the pooled spread of the data
    ``diagonal``    :class:`OffsetL2`: a learned scale for each class and input
    ``low-rank``    :class:`Mahalanobis`: a learned ellipsoid for each class
    ``shared``      the same with one ellipsoid for all; with rank D, that of linear
                    discriminant analysis
    ==============  ========================================================================

    ==============  ========================================================================
    ``logits``      what :meth:`forward` gives, divided by the ``temperature``
    ==============  ========================================================================
    ``distance``    ``−d_c``
    ``squared``     ``−d_c² / 2``: with the softmax, Gaussians whose volumes do not count
    ``density``     ``−(d_c² + log det Σ_c) / 2``: the log-density of class c up to a constant
    ==============  ========================================================================

    Train it as any layer (cross-entropy on its logits), or set it in closed form on the features
    of a trained network with :meth:`fit_prototypes`. Cross-entropy sees differences of distances
    only: add :func:`~mahalens.nn.compactness_penalty`, or samples need not be near their own class.
    Then, on samples that training has not seen, :meth:`calibrate` sets the temperature and
    :meth:`set_reject` how far is too far.

    The softmax of the logits cannot reject: it is divided by the sum over classes, and what is
    equally far from all of them, or a thousand spreads away and a little less from one, comes out
    as an ordinary or even a certain decision. Only the distance itself, :meth:`ood_score`, says
    that a sample is like nothing known.

    Temperature and threshold are buffers, kept by ``state_dict``; training on makes them stale.

    All methods but :meth:`forward` take NumPy arrays too, and measure in float64 where the squares
    of distances leave the range of float32.

    Args:
        inputs: D, the width of the features.
        classes: C.
        metric: see above.
        rank: axes of each ellipsoid, for metrics "low-rank" and "shared" only.
        logits: see above.
        remainder: see :class:`Mahalanobis`, for metrics "low-rank" and "shared" only.

    Shapes: ``[..., D]`` to ``[..., C]``.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
    >>> head = DistanceHead(1, 2).fit_prototypes(x, torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> head.prototypes.tolist()
    [[1.0], [11.0]]
    >>> _ = head.set_reject(x, rate=0.2)
    >>> head.predict(torch.tensor([[0.5], [11.0], [100.0]]))
    tensor([ 0,  1, -1])
    """

    temperature: Tensor
    threshold: Tensor
    reject_rate: Tensor

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        metric: str = "euclidean",
        rank: int | None = None,
        logits: str = "distance",
        remainder: str = "spherical",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("DistanceHead", inputs=inputs, classes=classes)
        if metric not in METRICS:
            known = ", ".join(METRICS)
            raise InputError(f"unknown metric {metric!r} of DistanceHead; known: {known}")
        if logits not in LOGITS:
            known = ", ".join(LOGITS)
            raise InputError(f"unknown logits {logits!r} of DistanceHead; known: {known}")
        self.inputs = inputs
        self.classes = classes
        self.metric = metric
        self.logits = logits
        self.distance: OffsetL2 | Mahalanobis
        if metric in ("low-rank", "shared"):
            if rank is None:
                raise InputError(f"metric {metric!r} needs a rank; give one from 1 to {inputs}")
            self.distance = Mahalanobis(
                inputs,
                classes,
                rank,
                remainder=remainder,
                shared=metric == "shared",
                device=device,
                dtype=dtype,
            )
        else:
            if rank is not None or remainder != "spherical":
                raise InputError(
                    f"metric {metric!r} takes no rank or remainder; leave them out, or take "
                    'metric="low-rank"'
                )
            self.distance = OffsetL2(inputs, classes, device=device, dtype=dtype)
            self.distance.alpha.requires_grad_(metric == "diagonal")
        self.register_buffer("temperature", torch.ones((), device=device, dtype=dtype))
        unset = torch.full((classes,), math.nan, device=device, dtype=dtype)
        self.register_buffer("threshold", unset)
        self.register_buffer("reject_rate", unset[0].clone())

    @property
    def prototypes(self) -> nn.Parameter:
        """μ [C, D], one for each class."""
        return self.distance.mu

    @property
    def log_determinants(self) -> Tensor:
        """log det Σ_c [C]: how large the ellipsoid of each class is."""
        if isinstance(self.distance, Mahalanobis):
            return self.distance.log_determinants
        # A scale of 0 has no logarithm; its slope is 0 below the smallest number there is.
        scale = self.distance.alpha.abs()
        return -2 * scale.clamp(min=torch.finfo(scale.dtype).tiny).log().sum(-1)

    def distances(self, features: Tensor) -> Tensor:
        """Return the distance of each sample to each class: [..., D] to [..., C].

        What float32 cannot square is measured in float64; a distance too large for the dtype of
        the features is infinite. :meth:`forward` leaves that out, and so does this method where it
        is compiled, exported or mapped, which cannot look at numbers.
        """
        features = tensor_of("features", features, self.prototypes)
        found = self._measure(features)
        if found.dtype == torch.float64 or not found.numel() or _traced():
            return found
        smallest, largest = torch.aminmax(found.detach())
        if float(smallest) > SMALLEST and math.isfinite(float(largest)):
            return found
        wide = {name: value.double() for name, value in self.distance.named_parameters()}
        exact: Tensor = torch.func.functional_call(self.distance, wide, (features.double(),))
        return exact.to(found.dtype)

    def _measure(self, features: Tensor) -> Tensor:
        """The distances as the layer gives them."""
        if features.ndim < 1 or features.shape[-1] != self.inputs:
            raise InputError(
                f"DistanceHead of {self.inputs} inputs was given features of shape "
                f"{tuple(features.shape)}; give [..., {self.inputs}]"
            )
        found: Tensor = self.distance(features)
        return found

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of each sample."""
        return self._logits(self._measure(features)) / self.temperature

    def ood_score(self, features: Tensor) -> Tensor:
        """Return the smallest distance of each sample [N]: large where it is like no class.

        It is the distance as it is. Divided by what all classes say, as in a softmax, it would
        no longer tell a sample far from all classes from one near to several.
        """
        return self.distances(self._plain(features, least=0)).amin(-1)

    @torch.no_grad()
    def assess(self, features: Tensor) -> Prediction:
        """Classify samples [N, D], rejecting those too far from every class, with all distances.

        The label is the class with the largest logit. A sample is rejected where its smallest
        distance is above the threshold (of that nearest class, if thresholds are per class).
        """
        if bool(self.threshold.isnan().any()):
            raise InputError(
                "this head has no reject threshold; call set_reject(features, rate) first, or take "
                "head(features).argmax(-1), which never rejects"
            )
        distances = self.distances(self._plain(features, least=0))
        score, place = distances.min(-1)
        logits, nearest = self._logits(distances).max(-1)
        # Squares of distances may overflow: these decide then, if they are numbers.
        nearest = torch.where(logits.isfinite(), nearest, place)
        nearest = torch.where(score.isfinite(), nearest, REJECTED)
        near = score <= self.threshold[place]  # not so for NaN, which is rejected
        labels = torch.where(near, nearest, REJECTED)
        return Prediction(labels, nearest, score, distances)

    def predict(self, features: Tensor) -> Tensor:
        """Return the class of each sample [N], -1 where it is too far from every class."""
        return self.assess(features).labels

    def fit_prototypes(
        self, features: Tensor, y: Tensor, *, ridge: float = 0.0, shrinkage: float | str = 0.0
    ) -> DistanceHead:
        """Set prototypes and spreads from features [N, D] with labels y [N], in closed form.

        Prototypes become class means; spreads those within classes, by the metric. Every class
        needs 2 samples or more. ``ridge`` adds that share of its mean variance to a covariance,
        ``shrinkage`` (a share, or "ledoit-wolf") pulls it towards a sphere. Temperature and
        threshold are taken back, being those of other distances. Nothing changes on an error.
        """
        x, labels, _ = labelled(features, y, self.classes, self.inputs)
        if isinstance(self.distance, Mahalanobis):
            fit_mahalanobis(self.distance, x, labels, ridge=ridge, shrinkage=shrinkage)
        else:
            diagonal = self.metric == "diagonal"
            fit_offset_l2(
                self.distance, x, labels, diagonal=diagonal, ridge=ridge, shrinkage=shrinkage
            )
        self.forget()
        return self

    def forget(self) -> None:
        """Take back temperature and threshold, which were those of other distances."""
        self.temperature.fill_(1.0)
        self.threshold.fill_(math.nan)
        self.reject_rate.fill_(math.nan)

    @torch.no_grad()
    def calibrate(self, features: Tensor, y: Tensor) -> float:
        """Set, and return, the temperature that suits labels y [N] of features [N, D] best.

        Give samples that training has not seen: on its own it is surer than it should be. See
        :func:`~mahalens.nn.calibration.best_temperature`. Labels and distances stay the same.
        """
        logits = self._logits(self._measured(features))
        found = best_temperature(logits, plain_labels(y, len(logits), self.classes))
        self.temperature.fill_(found)
        return found

    @torch.no_grad()
    def set_reject(self, features: Tensor, rate: float, *, per_class: bool = False) -> Tensor:
        """Set how far is too far, so that of samples like these a share ``rate`` is rejected.

        The threshold is a quantile of the smallest distances of features [N, D], the one for which
        the rate is kept, on average, for new samples; with ``per_class``, one quantile for the
        samples nearest to each class. Samples that the head was fitted to are nearer than new
        ones, so that more of these than ``rate`` are rejected: give some that it has not seen if
        the rate is to be exact. Returns the thresholds [C].
        """
        share = require_rate(rate)
        score, place = self._measured(features).min(-1)
        if per_class:
            found = torch.stack(
                [
                    reject_threshold(score[place == k], share, f"samples nearest to class {k}")
                    for k in range(self.classes)
                ]
            )
        else:
            found = reject_threshold(score, share).expand(self.classes)
        self.threshold.copy_(found)
        self.reject_rate.fill_(share)
        return self.threshold.clone()

    def extra_repr(self) -> str:
        """Return the arguments, and what has been set since."""
        parts = [f"inputs={self.inputs}, classes={self.classes}, metric={self.metric!r}"]
        if isinstance(self.distance, Mahalanobis):
            parts.append(f"rank={self.distance.rank}")
        parts.append(f"logits={self.logits!r}")
        if not self.temperature.is_meta and float(self.temperature) != 1:
            parts.append(f"temperature={float(self.temperature):.4g}")
        if not self.reject_rate.is_meta and not bool(self.reject_rate.isnan()):
            parts.append(f"reject_rate={float(self.reject_rate):.4g}")
        return ", ".join(parts)

    def _plain(self, features: Tensor, least: int = 1) -> Tensor:
        return plain_features(features, self.inputs, least=least, like=self.prototypes)

    def _measured(self, features: Tensor) -> Tensor:
        """Distances [N, C] to set something by: all of them numbers."""
        distances = self.distances(self._plain(features))
        require_finite("distances", distances)
        return distances

    def _logits(self, distances: Tensor) -> Tensor:
        if self.logits == "distance":
            return -distances
        half = distances.square() / 2
        return -half if self.logits == "squared" else -half - self.log_determinants / 2


def _traced() -> bool:
    """Whether tensors hold no numbers to look at now: in torch.compile, torch.export or vmap."""
    inside = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
    return torch.compiler.is_compiling() or inside() is not None
