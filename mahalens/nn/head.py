"""A classifier for the features of any network: distances to classes, with a reject option."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.files import read_file, replacing
from mahalens.geometry._checks import require_finite, tensor_of
from mahalens.geometry.ellipsoids import DiagonalEllipsoids, SphericalEllipsoids
from mahalens.nn.layers import (
    OffsetL2,
    require_known,
    require_sizes,
    require_width,
    root,
    scale_lengths,
)
from mahalens.nn.mahalanobis import (
    Mahalanobis,
    check_features,
    check_labelled,
    check_labels,
    class_ellipsoids,
    fit_mahalanobis,
    set_fit,
)

METRICS = ("euclidean", "diagonal", "low-rank", "shared")
LOGITS = ("distance", "squared", "density")
REJECTED = -1
"""The label of a sample that is too far from every class."""

NORMALISE = ("auto", "none", "unit")

_FILE_KEY = "mahalens.distance_head"
_TRIED = 5_000  # samples that decide about the length of features, at most
_SMALLEST = 1e-15  # squares of smaller distances have lost digits in float32


class Prediction(NamedTuple):
    """Answer of a head for N samples.

    ``labels`` [N], -1 where rejected; ``nearest`` [N], the class with the largest logit, rejected
    or not, and -1 where no distance is a finite number; ``score`` [N], the smallest distance;
    ``distances`` [N, C].
    """

    labels: Tensor
    nearest: Tensor
    score: Tensor
    distances: Tensor

    @property
    def rejected(self) -> Tensor:
        """Mask [N] of the samples that are too far from every class."""
        return self.labels == REJECTED


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

    ===============  =======================================================================
    ``normalise``    what is measured, features x being given
    ===============  =======================================================================
    ``none``         x
    ``unit``         x / ‖x‖: directions only
    a number β       x / ‖x‖^β
    ``auto``         x where the head is trained; where :meth:`fit_prototypes` sets it, "unit"
                     unless that costs accuracy on known samples
    ===============  =======================================================================

    Networks give short features to what they do not know, and what is short is near every mean: a
    head on a pretrained backbone should measure directions (Mahalanobis++, arXiv 2505.18032).
    Features in which length is information, such as the columns of a table, should stay as they
    are. "auto" tells the two apart by known samples alone; see :meth:`fit_prototypes`.

    Train it as any layer (cross-entropy on its logits), or set it in closed form on the features
    of a trained network with :meth:`fit_prototypes`. Cross-entropy sees differences of distances
    only: add :func:`~mahalens.nn.compactness_penalty`, or samples need not be near their own class.
    Then, on samples that training has not seen, :meth:`calibrate` sets the temperature and
    :meth:`set_reject` the distance that is too far.

    The softmax of the logits cannot reject: it is divided by the sum over classes, and what is
    equally far from all of them, or a thousand spreads away and a little less from one, comes out
    as an ordinary or even a certain decision. Only the distance itself, :meth:`ood_score`, says
    that a sample is like nothing known.

    Temperature and threshold are buffers, saved by ``state_dict``; more training makes them stale.

    All methods but :meth:`forward` take NumPy arrays too, and measure in float64 where the squares
    of distances leave the range of float32.

    Args:
        inputs: D, the width of the features.
        classes: C.
        metric: see above.
        rank: axes of each ellipsoid, for metrics "low-rank" and "shared" only.
        logits: see above.
        remainder: see :class:`Mahalanobis`, for metrics "low-rank" and "shared" only.
        normalise: see above.

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
    beta: Tensor

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        metric: str = "euclidean",
        rank: int | None = None,
        logits: str = "distance",
        remainder: str = "spherical",
        normalise: str | float = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("DistanceHead", inputs=inputs, classes=classes)
        require_known("DistanceHead", "metric", metric, METRICS)
        require_known("DistanceHead", "logits", logits, LOGITS)
        self.inputs = inputs = int(inputs)  # JSON takes no integers of NumPy
        self.classes = classes = int(classes)
        self.metric = metric
        self.logits = logits
        self.normalise = normalise
        self._beta = _check_normalise(normalise)
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
        # What counts is the number of Python: exact in half precision too, and no look-up. The
        # buffer is float32 because Apple's GPUs hold nothing wider.
        self.register_buffer("beta", torch.tensor(self._beta, device=device, dtype=torch.float32))

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

        Distances whose squares float32 cannot hold are measured in float64; those too large for the
        dtype of the features are infinite. :meth:`forward` skips this, and so does this method
        where it is compiled, exported or mapped, because it has to look at numbers.
        """
        features = tensor_of("features", features, self.prototypes)
        require_width("DistanceHead", features, self.inputs)
        features = self.scaled(features)
        distances: Tensor = self.distance(features)
        if distances.dtype == torch.float64 or not distances.numel() or _is_traced():
            return distances
        smallest, largest = torch.aminmax(distances.detach())
        if float(smallest) > _SMALLEST and math.isfinite(float(largest)):
            return distances
        wide = {name: value.double() for name, value in self.distance.named_parameters()}
        exact: Tensor = torch.func.functional_call(self.distance, wide, (features.double(),))
        return exact.to(distances.dtype)

    def scaled(self, features: Tensor) -> Tensor:
        """Return features as they are measured: x / ‖x‖^β, with the β of ``normalise``."""
        return scale_lengths(features, self._beta)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of each sample."""
        require_width("DistanceHead", features, self.inputs)
        return self._logits(self.distance(self.scaled(features))) / self.temperature

    def ood_score(self, features: Tensor) -> Tensor:
        """Return the smallest distance of each sample [N]: large where it is like no class.

        It is the distance itself. Divided by a sum over all classes, as in a softmax, it would
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
        threshold are reset, because they belonged to other distances. Nothing changes on an error.

        With ``normalise="auto"`` two heads are fitted to half of the samples of each class, one to
        x and one to x / ‖x‖, and classify the other half. Lengths are dropped unless that costs
        more accuracy than one standard error of the difference. Where half of the samples are too
        few for a fit, all are both fitted to and classified.
        """
        x, labels, _ = check_labelled(features, y, self.classes, self.inputs)
        beta = self._beta
        if self.normalise == "auto":
            beta = self._best_beta(x, labels, ridge=ridge, shrinkage=shrinkage)
        x = scale_lengths(x, beta)
        if isinstance(self.distance, Mahalanobis):
            fit_mahalanobis(self.distance, x, labels, ridge=ridge, shrinkage=shrinkage)
        else:
            self._fit_scales(self.distance, x, labels, ridge=ridge, shrinkage=shrinkage)
        self._beta = beta
        self.beta.fill_(beta)
        self.reset_calibration()
        return self

    def _best_beta(self, x: Tensor, y: Tensor, **options: Any) -> float:
        """Return 1 (unit length) unless it costs accuracy on samples that a fit has not seen."""
        turn = torch.empty_like(y)  # place of each sample within its class
        for k in range(self.classes):
            turn[y == k] = torch.arange(int((y == k).sum()))
        few = turn < max(4, _TRIED // self.classes)
        even = turn % 2 == 0
        every = torch.ones_like(even)
        # A rank may need more samples than a few have, or a half.
        for seen, unseen in ((even & few, ~even & few), (even, ~even), (every, every)):
            if int(torch.bincount(y[unseen], minlength=self.classes).min()) < 2:
                continue
            cost = self._cost_of_unit(x, y, seen, unseen, **options)
            if cost is not None:
                error = float(cost.std()) / math.sqrt(len(cost)) if len(cost) > 1 else 0.0
                return 1.0 if float(cost.mean()) <= error else 0.0
        return 0.0  # of x itself, the fit to all samples will say what is wrong

    def _cost_of_unit(
        self, x: Tensor, y: Tensor, seen: Tensor, unseen: Tensor, **options: Any
    ) -> Tensor | None:
        """Return what unit length costs each unseen sample [n], 1 if it is then wrong, -1 if right.

        None if there is no fit to the samples seen.
        """
        right = []
        for beta in (0.0, 1.0):
            trial = copy.deepcopy(self)
            trial.normalise, trial._beta = beta, beta
            try:
                trial.fit_prototypes(x[seen].to(self.prototypes), y[seen], **options)
            except InputError:
                return None
            logits = trial._logits(trial.distances(x[unseen].to(self.prototypes)))
            right.append((logits.argmax(-1).cpu() == y[unseen]).double())
        return right[0] - right[1]

    def _fit_scales(self, layer: OffsetL2, x: Tensor, y: Tensor, **options: object) -> None:
        """Set prototypes to class means and scales to 1 / spread.

        A diagonal metric has a spread per class and input, a euclidean one a single spread, pooled
        within classes.
        """
        diagonal = self.metric == "diagonal"
        kind = "diagonal" if diagonal else "spherical"
        ellipsoids, means = class_ellipsoids(x, y, kind, not diagonal, **options)
        assert isinstance(ellipsoids, DiagonalEllipsoids | SphericalEllipsoids)
        spreads = ellipsoids.spreads if diagonal else ellipsoids.spreads[:, None]
        set_fit((layer.mu, means), (layer.alpha, spreads.reciprocal()))

    def reset_calibration(self) -> None:
        """Set the temperature back to 1 and remove the reject threshold."""
        self.temperature.fill_(1.0)
        self.threshold.fill_(math.nan)
        self.reject_rate.fill_(math.nan)

    def forget(self) -> None:
        """Call :meth:`reset_calibration`, the new name of this method."""
        message = "DistanceHead.forget is deprecated; call reset_calibration"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.reset_calibration()

    @torch.no_grad()
    def calibrate(self, features: Tensor, y: Tensor) -> float:
        """Set and return the temperature that fits labels y [N] of features [N, D] best.

        Give samples that training has not seen: a network is surer of those it has seen. See
        :func:`~mahalens.nn.head.best_temperature`. Labels and distances stay the same.
        """
        logits = self._logits(self._finite_distances(features))
        temperature = best_temperature(logits, check_labels(y, len(logits), self.classes))
        self.temperature.fill_(temperature)
        return temperature

    @torch.no_grad()
    def set_reject(self, features: Tensor, rate: float, *, per_class: bool = False) -> Tensor:
        """Set the threshold above which a share ``rate`` of samples like these is rejected.

        The threshold is a quantile of the smallest distances of features [N, D], the one for which
        the rate is kept, on average, for new samples; with ``per_class``, one quantile for the
        samples nearest to each class. Samples that the head was fitted to are nearer than new
        ones, and with them more new samples than ``rate`` are rejected: give samples that it has
        not seen if the rate is to be exact. Returns the thresholds [C].
        """
        share = _check_rate(rate)
        score, place = self._finite_distances(features).min(-1)
        if per_class:
            thresholds = torch.stack(
                [
                    reject_threshold(score[place == k], share, f"samples nearest to class {k}")
                    for k in range(self.classes)
                ]
            )
        else:
            thresholds = reject_threshold(score, share).expand(self.classes)
        self.threshold.copy_(thresholds)
        self.reject_rate.fill_(share)
        return self.threshold.clone()

    def frozen(self) -> FrozenHead:
        """Return a copy for use without this package: constants, plain operations, any batch size.

        It gives ``(labels, score, logits)`` as :meth:`assess` and :meth:`forward` do, and goes
        through ``torch.export`` and ``torch.onnx.export`` with a dynamic batch; this module, which
        factorises covariances on the way, goes through ``torch.export`` only.

        >>> x = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
        >>> head = DistanceHead(1, 2).fit_prototypes(x, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> _ = head.set_reject(x, rate=0.2)
        >>> head.frozen()(torch.tensor([[0.5], [11.0], [100.0]]))[0]
        tensor([ 0,  1, -1])
        """
        return FrozenHead(self)

    def save(self, path: str | Path) -> None:
        """Write parameters, calibration and all arguments into a safetensors file.

        A file of that name stays as it was until the new one is complete.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        state = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        try:
            with replacing(Path(path)) as temporary:
                save_file(state, temporary, {_FILE_KEY: json.dumps(self._arguments())})
        except SafetensorError as error:
            raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from None

    @classmethod
    def load(cls, path: str | Path) -> DistanceHead:
        """Return the head that :meth:`save` wrote, on the CPU. Nothing in the file is executed."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            content = read_file(Path(path))
            tensors = load(content)
            length = int.from_bytes(content[:8], "little")
            head = json.loads(content[8 : 8 + length]).get("__metadata__", {})
            arguments = json.loads(head[_FILE_KEY])
            made = cls(**arguments, dtype=tensors["threshold"].dtype)
            made.load_state_dict(tensors)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InputError(f"{path}: cannot be read ({reason}); give a file of save()") from None
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"{path}: not a file of a DistanceHead ({reason}); give one that save() wrote"
            ) from None
        return made

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments that make a head of this kind."""
        ellipsoid = isinstance(self.distance, Mahalanobis)
        return {
            "inputs": self.inputs,
            "classes": self.classes,
            "metric": self.metric,
            "rank": self.distance.rank if ellipsoid else None,
            "logits": self.logits,
            "remainder": self.distance.remainder if ellipsoid else "spherical",
            "normalise": self.normalise,
        }

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        # Heads saved before features could be normalised measured them as they were.
        key = prefix + "beta"
        if prefix + "threshold" in state_dict and key not in state_dict:
            state_dict[key] = torch.zeros_like(self.beta)  # type: ignore[index]
        exact = state_dict.get(key)
        if isinstance(exact, Tensor):  # on the CPU; float64 must go before a GPU is asked for
            device = state_dict.get(prefix + "threshold", exact).device
            state_dict[key] = exact.to(self.beta.dtype).to(device)  # type: ignore[index]
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if not self.beta.is_meta and isinstance(exact, Tensor) and exact.numel() == 1:
            self._beta = exact.item()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # On the CPU, and in float64 only where float32 is not exact, which some GPUs do not hold.
        exact = torch.tensor(self._beta, dtype=torch.float64)
        short = exact.float()
        destination[prefix + "beta"] = short if short.double() == exact else exact

    def extra_repr(self) -> str:
        """Return the arguments, and the temperature and reject rate that were set."""
        parts = [f"inputs={self.inputs}, classes={self.classes}, metric={self.metric!r}"]
        if isinstance(self.distance, Mahalanobis):
            parts.append(f"rank={self.distance.rank}")
        parts.append(f"logits={self.logits!r}")
        if self._beta:
            parts.append(f"normalise={'unit' if self._beta == 1 else self._beta!r}")
        if not self.temperature.is_meta and float(self.temperature) != 1:
            parts.append(f"temperature={float(self.temperature):.4g}")
        if not self.reject_rate.is_meta and not bool(self.reject_rate.isnan()):
            parts.append(f"reject_rate={float(self.reject_rate):.4g}")
        return ", ".join(parts)

    def _plain(self, features: Tensor, least: int = 1) -> Tensor:
        return check_features(features, self.inputs, least=least, like=self.prototypes)

    def _finite_distances(self, features: Tensor) -> Tensor:
        """Return distances [N, C] to calibrate by, or raise unless all are finite."""
        distances = self.distances(self._plain(features))
        require_finite("distances", distances)
        return distances

    def _logits(self, distances: Tensor) -> Tensor:
        if self.logits == "distance":
            return -distances
        half = distances.square() / 2
        return -half if self.logits == "squared" else -half - self.log_determinants / 2


class FrozenHead(nn.Module):
    """A :class:`DistanceHead` as constants; :meth:`DistanceHead.frozen` makes one.

    Shapes: ``[N, D]`` to labels ``[N]`` (-1 where rejected; without a threshold, never), the
    smallest distance ``[N]`` and logits ``[N, C]``.
    """

    mu: Tensor
    scale: Tensor
    rows: Tensor
    inner: Tensor
    shift: Tensor
    threshold: Tensor
    temperature: Tensor

    def __init__(self, head: DistanceHead) -> None:
        super().__init__()
        self.logits, self._beta = head.logits, head._beta
        self.shared = head.metric == "shared"
        distance = head.distance
        with torch.no_grad():
            if isinstance(distance, Mahalanobis):
                # d² = ‖ξ − Uᵀz‖² + ‖z‖² with z = (I + UUᵀ)⁻¹Uξ, which is linear in ξ.
                scale, rows, factor = distance._factor(torch.float64)
                inner = torch.cholesky_solve(rows, factor)
            else:
                scale = distance.alpha.double()
                rows = inner = torch.zeros(1, 0, head.inputs, dtype=torch.float64)
            shift = head.log_determinants if head.logits == "density" else torch.zeros(())
            threshold = torch.where(head.threshold.isnan(), math.inf, head.threshold)
        values = {"scale": scale, "rows": rows, "inner": inner, "mu": head.prototypes}
        values |= {"shift": shift, "threshold": threshold, "temperature": head.temperature}
        kind = torch.promote_types(head.prototypes.dtype, torch.float32)
        for name, value in values.items():
            self.register_buffer(name, value.detach().to(head.prototypes.device, kind).clone())

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels [N], the smallest distance [N] and logits [N, C]."""
        x = scale_lengths(features.to(self.mu.dtype), self._beta)
        if self.shared:
            middle = self.mu.mean(0)
            difference = self._apart(x - middle)[:, None] - self._apart(self.mu - middle)
            squares = difference.square().sum(-1)
        else:
            squares = self._apart(x - self.mu[:, None]).square().sum(-1).mT
        distances = root(squares)
        half = squares / 2
        logits = {"distance": -distances, "squared": -half, "density": -half - self.shift / 2}
        score, place = distances.min(-1)
        nearest = logits[self.logits].argmax(-1)
        labels = torch.where(score <= self.threshold[place], nearest, REJECTED)
        return labels, score, logits[self.logits] / self.temperature

    def _apart(self, difference: Tensor) -> Tensor:
        """Return vectors [..., D + R] whose squares add up to d²."""
        whole = difference * (self.scale[0] if self.shared else self.scale[:, None])
        if not self.rows.shape[1]:
            return whole
        rows, inner = (self.rows[0], self.inner[0]) if self.shared else (self.rows, self.inner)
        z = whole @ inner.mT
        return torch.cat((whole - z @ rows, z), -1)


def _check_normalise(normalise: object) -> float:
    """Return the exponent β that an argument stands for, 0 for "auto"; or raise."""
    if isinstance(normalise, str) and normalise in NORMALISE:
        return float(normalise == "unit")
    is_number = isinstance(normalise, Real) and not isinstance(normalise, bool)
    beta = float(normalise) if is_number else math.nan  # type: ignore[arg-type]
    if 0 <= beta <= 1:
        return beta
    raise InputError(
        f"DistanceHead: normalise is {normalise!r}; give {', '.join(map(repr, NORMALISE))} or a "
        "number from 0 (none) to 1 (unit length)"
    )


def _is_traced() -> bool:
    """Return whether tensors hold no numbers now: in torch.compile, torch.export or vmap."""
    inside = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
    return torch.compiler.is_compiling() or inside() is not None


def best_temperature(logits: Tensor, y: Tensor) -> float:
    """Return the T for which ``softmax(logits / T)`` makes labels y [N] most likely; logits [N, C].

    With β = 1/T the mean of ``log Σ_k exp(β z_k) − β z_y`` is convex. Its slope
    ``mean(Σ_k p_k z_k − z_y)`` grows with β and is followed to its only zero (Brent's method, in
    float64). There is none where every sample is right (T = 0 would be best), nor where logits of
    the labels are below average (T = ∞ would be best); both are errors.

    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> y = torch.tensor([0, 0, 0, 1])  # right three times of four: softmax(2 / T) = 3/4
    >>> round(best_temperature(z, y), 6) == round(2 / math.log(3), 6)
    True
    """
    from scipy.optimize import brentq

    z = logits.detach().cpu().double().numpy()
    z = z - z.max(axis=1, keepdims=True)
    labels = y.cpu().numpy()
    of_labels = float(z[np.arange(len(z)), labels].mean())
    if of_labels == 0:
        raise InputError(
            f"all {len(z)} samples are right, so no temperature is best (the lower, the better); "
            "calibrate on more samples, which training has not seen"
        )
    if float(z.mean()) >= of_labels:
        raise InputError(
            f"the labels of {len(z)} samples have no better logits than other classes, so no "
            "temperature is best (the higher, the better); check the labels, or train first"
        )

    def slope(log_beta: float) -> float:
        return _expected(z, math.exp(log_beta)) - of_labels

    # Shifted by their largest, logits are at most 0: the scale of a soft decision is their mean.
    low = high = -math.log(-float(z.mean()))
    while slope(low) > 0:
        low -= 1
    while slope(high) < 0:
        high += 1
    if low == high:
        return math.exp(-low)
    return math.exp(-float(brentq(slope, low, high, xtol=1e-12)))


def _expected(z: NDArray[np.float64], beta: float) -> float:
    """Return the mean of Σ_k p_k z_k; z has its largest entry of each row at 0."""
    weights = np.exp(beta * z)
    return float(((weights * z).sum(axis=1) / weights.sum(axis=1)).mean())


def _check_rate(rate: object) -> float:
    """Return a share strictly between 0 and 1, or raise."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < float(rate) < 1:
        raise InputError(
            f"reject rate is {rate!r}, wanted a number between 0 and 1, such as 0.05 to reject "
            "5 % of ordinary samples"
        )
    return float(rate)


def reject_threshold(scores: Tensor, rate: float, of: str = "samples") -> Tensor:
    """Return the score [] that a new sample like these exceeds with probability ``rate`` at most.

    It is the ⌈(n + 1)(1 − rate)⌉-th smallest of n scores: a new one is equally likely to fall
    between any two of them. This holds exactly, for any n and any distribution, where nothing else
    was fitted to the samples.

    >>> reject_threshold(torch.arange(1.0, 100.0), 0.05)  # 99 scores
    tensor(95.)
    """
    count = len(scores)
    # Rounded first: (n + 1)(1 - rate) may come out a hair above the whole number it stands for.
    place = math.ceil(round((count + 1) * (1 - rate), 9))
    if place > count:
        raise InputError(
            f"a reject rate of {rate:g} cannot be set from {count} {of}; give at least "
            f"{math.ceil(1 / rate) - 1}, or a higher rate"
        )
    return torch.sort(scores.detach()).values[max(place, 1) - 1]
