"""Several detectors as one, of the same features or of several layers, and judging detectors.

Only known samples judge: held-out classes, and unknowns made from known samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mahalens.detection.base import Detector, Explanation
from mahalens.detection.features import Source
from mahalens.detection.known import Known, Rows, Wanted, moments_of
from mahalens.detection.logits import _Logits
from mahalens.detection.metrics import auroc
from mahalens.errors import InputError

FOLDS = 3
ROWS = 8_000
"""Samples that detectors are judged on, at most."""

SHARE = 4
"""One of so many samples judges, the others are fitted to."""

FAR = 5.0
"""Made-up features are shorter and longer than known ones by so many spreads of log length."""

AWAY = {"far": 5.0, "farther": 20.0}
"""Made-up features around the mean have so many times the known spread."""

STEADY, CENTRED = 0.5, 0.1
"""Lengths are characteristic if their logarithm spreads by at most the first, and the mean of the
features has at least the second of their mean square: only then is 0 a strange place to be."""

Scores = tuple[Tensor, Tensor]
"""Scores of known and of unknown samples."""


class Judge:
    """Tasks made of known samples, on which detectors can be compared.

    A sample of the known samples, at most 8,000, is divided class by class: detectors are fitted to
    three quarters and judged on the rest. With three classes or more, three folds of classes are
    unknown in turn. Then all are known, and unknown are features that were made up: every column
    shuffled, so that only its distribution stays; the same shorter; the same longer, each by five
    standard deviations of the logarithm of the length. Where lengths say nothing, because features
    lie around 0 or differ much in length, noise five and twenty times as wide as the known features
    takes the place of the shorter and the longer ones.

    The only sample of a class is fitted to: otherwise the detector would not know the class.
    Classes without samples that judge are never held out.

    Args:
        known: the known samples.
        seed: of folds and shuffles.
    """

    def __init__(self, known: Known, *, seed: int = 0) -> None:
        self._known = known
        rows = known.some
        order = rows.draw.argsort()[:ROWS]
        order = order[rows.y[order].argsort(stable=True)]
        judges = torch.arange(len(order)) % SHARE == SHARE - 1
        fewer = judges & (torch.bincount(rows.y[order])[rows.y[order]] > 1)
        if 2 * int(fewer.sum()) >= int(judges.sum()):  # otherwise too few would be left to judge
            judges = fewer
        self._fit, self._rest = rows[order[~judges]], rows[order[judges]]
        generator = torch.Generator().manual_seed(seed)
        judged = self._rest.y.unique()
        count = len(judged) if known.labelled else 0
        classes = judged[torch.randperm(count, generator=generator)]
        self._folds = [classes[fold::FOLDS] for fold in range(FOLDS if count >= FOLDS else 0)]
        self.centred = _is_centred(rows.z[order])
        """True if features lie around 0, where their length says nothing."""
        self._made = _made(self._rest, self.centred, generator)
        self.kinds = tuple(self._made)

    @property
    def folds(self) -> int:
        """The number of tasks with classes held out, which come first."""
        return len(self._folds)

    def inside(self, make: Callable[[], Detector]) -> Tensor:
        """Return the scores of known samples that a detector was not fitted to."""
        detector = self._fitted(make(), torch.arange(len(self._known.classes)))
        return detector.run(self._rest)

    def scores(self, make: Callable[[], Detector]) -> list[Scores]:
        """Return scores for each task, as :meth:`tasks`; raise if they cannot judge a detector.

        Logits of made-up features are only known if a linear layer makes them. A network that was
        trained on other classes can have logits where there is one known class, or none.
        """
        if isinstance(make(), _Logits) and self._fit.logits is not None:
            if self._known.linear is None:
                raise InputError(
                    "logits of made-up unknowns are not known without a linear layer that makes "
                    "them from the features"
                )
            if len(self._known.classes) < 2:
                raise InputError("logits compare classes, and there is 1 known class")
        return self.tasks(make)

    def tasks(self, make: Callable[[], Detector]) -> list[Scores]:
        """Return scores for each task: first the folds of classes, then the made unknowns.

        Where no linear layer makes logits from features, made-up features keep those of the known
        samples that they were made from.
        """
        classes = torch.arange(len(self._known.classes))
        whole = self._fitted(make(), classes)
        inside = whole.run(self._rest)
        made = [(inside, whole.run(rows)) for rows in self._made.values()]
        return [self._fold(make(), fold) for fold in self._folds] + made

    def _fold(self, detector: Detector, fold: Tensor) -> Scores:
        classes = torch.arange(len(self._known.classes))
        stay = classes[~torch.isin(classes, fold)]
        self._fitted(detector, stay)
        inside = torch.isin(self._rest.y, stay)
        rest = self._columns(self._rest, stay)
        return detector.run(rest[inside]), detector.run(rest[~inside])

    def _fitted(self, detector: Detector, stay: Tensor) -> Detector:
        """Fit a detector to the rows of some classes."""
        linear = self._known.linear if len(stay) == len(self._known.classes) else None
        rows = self._columns(self._fit[torch.isin(self._fit.y, stay)], stay)
        stay = rows.y.unique()  # a class without samples would have its mean at 0
        rows = replace(rows, y=torch.searchsorted(stay, rows.y))
        part = replace(self._known, classes=self._known.classes[stay], sample=rows, linear=linear)
        detector.learn(moments_of(part, detector.wanted))
        return detector

    def _columns(self, rows: Rows, stay: Tensor) -> Rows:
        """Return rows with the logits of some classes only, if there is one for each class."""
        classes = self._known.classes
        if rows.logits is None or len(stay) == len(classes):
            return rows
        count = rows.logits.shape[1]
        if int(classes[0]) >= 0 and int(classes[-1]) < count:  # logit l is that of label l
            return replace(rows, logits=rows.logits[:, classes[stay]])
        return replace(rows, logits=rows.logits[:, stay]) if count == len(classes) else rows


def area(task: Sequence[Scores]) -> float:
    """Return the AUROC of the average of several detectors on one task, each standardised."""
    sums = [torch.zeros_like(side) for side in task[0]]
    for sides in task:
        spread, mean = torch.std_mean(sides[0], correction=0)
        sums = [a + (b - mean) / spread.clamp(min=1e-30) for a, b in zip(sums, sides, strict=True)]
    return auroc(*sums)


def _is_centred(z: Tensor) -> bool:
    return float(z.mean(0).square().sum() / z.square().sum(1).mean().clamp(min=1e-30)) < CENTRED


def _made(rows: Rows, centred: bool, generator: torch.Generator) -> dict[str, Rows]:
    """Return made-up features by kind."""
    z = rows.z
    order = torch.rand(z.shape, generator=generator).argsort(0)
    shuffled = z.gather(0, order.to(z.device))
    lengths = torch.linalg.vector_norm(z, dim=1).clamp(min=1e-30)
    logarithms, mean = lengths.log(), z.mean(0)
    spread = float(logarithms.std(correction=0))
    if spread > STEADY or centred:
        noise = torch.randn(z.shape, generator=generator).to(z)
        noise *= z.std(0, correction=0)
        made = {"shuffled": shuffled} | {kind: mean + wide * noise for kind, wide in AWAY.items()}
    else:
        ways = {"shuffled": 0, "shorter": -1, "longer": 1}
        made = {kind: shuffled * math.exp(way * FAR * spread) for kind, way in ways.items()}
    return {kind: replace(rows, z=features) for kind, features in made.items()}


class Combined(Detector):
    """The average of several detectors of the same features, each standardised.

    With the scores s_k of K detectors, and the mean m_k and the spread σ_k of s_k for known samples
    that the detector was not fitted to (a quarter of a sample, see
    :class:`~mahalens.detection.layered.Judge`)::

        score(z) = Σ_k (s_k(z) − m_k) / (K σ_k)

    The nearest class is that of the first detector that compares the known classes. Detectors of
    logits compare the classes of the model, which can be others; if all are of this kind, the first
    one names the class. ``method="auto"`` of :func:`~mahalens.detect` makes most of its choices of
    this kind: a distance, a relative distance and neighbours err on different samples.

    Args:
        parts: pairs of a method and its options.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1] += 10
    >>> plain = {"normalise": "none"}
    >>> detector = Combined([("mahalanobis", plain), ("neighbours", plain)]).fit_features(z, y)
    >>> detector.reject_features([[10.0, 10.0, 10.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "combined"
    weights: Tensor
    locations: Tensor
    scales: Tensor

    def __init__(self, parts: Sequence[tuple[str, dict[str, Any]]]) -> None:
        if any(isinstance(part, str) or len(part) != 2 for part in parts):
            raise InputError(f"parts are {parts!r}; give pairs of a method and its options")
        pairs = [(method, dict(options)) for method, options in parts]
        super().__init__(parts=pairs)
        self._build([_maker(method, options) for method, options in pairs])

    def _build(self, makers: list[Callable[[], Detector]]) -> None:
        if not makers:
            raise InputError("there are no parts; give at least one method with its options")
        self._makers = makers
        self._naming = 0  # the detector that names the nearest class
        self.parts = nn.ModuleList(make() for make in makers)
        self.needs_labels = any(part.needs_labels for part in self._detectors())
        self.needs_classes = max(part.needs_classes for part in self._detectors())

    @property
    def wanted(self) -> Wanted:
        """What any of the detectors wants, and a sample to standardise them."""
        wanted = Wanted(sample=True)
        for part in self._detectors():
            wanted = wanted | part.wanted
        return wanted

    def settle(self, known: Known) -> None:
        """Fit all detectors."""
        count = len(self.parts)
        for part in self._detectors():
            part.learn(known)
        judge = Judge(known)
        scores = [judge.inside(make) for make in self._makers]
        self._standardise(scores, torch.full((count,), 1 / count))

    def _standardise(self, scores: list[Tensor], weights: Tensor) -> None:
        spreads, means = zip(*(torch.std_mean(some) for some in scores), strict=True)
        scales = torch.stack(spreads)
        self.remember(
            weights=weights.to(scales),
            locations=torch.stack(means),
            scales=scales.clamp(min=torch.finfo(scales.dtype).tiny),
        )
        groups = [part.classes for part in self._detectors()]
        self._naming = _naming(weights, groups, self.classes)
        self.remember(classes=groups[self._naming])

    def _detectors(self) -> list[Detector]:
        return [part for part in self.parts if isinstance(part, Detector)]

    def _views(self, z: Tensor) -> Sequence[Tensor]:
        """Return the features that each detector sees."""
        return [z] * len(self.parts)

    def standardised(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the standardised score of each detector [N, K], and nearest classes [N, K]."""
        pairs = [part(some, logits) for part, some in zip(self.parts, self._views(z), strict=True)]
        scores = torch.stack([pair[0] for pair in pairs], 1)
        return (scores - self.locations) / self.scales, torch.stack([p[1] for p in pairs], 1)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score, and the place of the nearest class among ``classes``."""
        scores, places = self.standardised(z, logits)
        return scores @ self.weights, places[:, self._naming]

    @property
    def columns(self) -> int:
        """As many as the largest of the detectors has."""
        return max(part.columns for part in self._detectors())

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if f"{prefix}weights" in state_dict:
            groups = [state_dict[f"{prefix}parts.{k}.classes"] for k in range(len(self.parts))]
            weights, classes = (state_dict[prefix + name] for name in ("weights", "classes"))
            self._naming = _naming(weights, groups, classes)


class Layered(Combined):
    """The average score over several layers, each standardised; which ones, known samples decide.

    A detector s_k for each layer k, with the mean m_k and the spread σ_k of its scores of known
    samples, and weights w_k::

        score(z) = Σ_k w_k (s_k(z_k) − m_k) / σ_k

    Layers are judged as :func:`~mahalens.detect` judges methods: by classes held out as unknown and
    by self-made unknowns. Beginning with the best layer, others join as long as the judgement of
    the average improves; those that have joined have equal weights, the others 0.

    Features of the layers stand side by side, [N, D₁ + D₂ + ...]; ``fit_features`` and the others
    also take a list of [N, D_k]. All is fitted to a sample of the known samples, at most 50,000
    rows or 2²⁵ numbers, as many of each class as possible.

    Args:
        layers: names of the layers, as in ``model.named_modules()``.
        method: of the detector of each layer; its options follow.

    >>> draw = torch.Generator().manual_seed(0)
    >>> y = torch.arange(600) % 4
    >>> noise, z = torch.randn(600, 4, generator=draw), torch.randn(600, 8, generator=draw)
    >>> detector = Layered(["a", "b"]).fit_features([noise, z + 6 * torch.eye(8)[y]], y)
    >>> detector.weights
    tensor([0., 1.])
    """

    method: ClassVar[str] = "layered"
    widths: Tensor

    def __init__(
        self, layers: Sequence[str], *, method: str = "mahalanobis", **options: Any
    ) -> None:
        names = list(layers)
        if isinstance(layers, str) or not names or len(set(names)) < len(names):
            raise InputError(f"layers are {layers!r}; give a list of different names of modules")
        if method == "mahalanobis":
            options = {"normalise": "unit", "shrinkage": 0.1, **options}
        Detector.__init__(self, layers=names, method=method, **options)
        self._build([_maker(method, options)] * len(names))
        self.layer = tuple(names)
        self._widths: list[int] = []

    @property
    def wanted(self) -> Wanted:
        """A sample of the rows."""
        return Wanted(sample=True)

    def fit(
        self,
        model: nn.Module,
        loader: Any,
        *,
        layer: str | None = None,
        hold_out: float = 0.2,
        seed: int = 0,
    ) -> Self:
        """Fit to known samples in one pass; see :meth:`Detector.fit`. Layers are those named."""
        if layer is not None:
            raise InputError("Layered has its layers already; leave layer out")
        return self._fit_source(Source(model, self.options["layers"]), loader, hold_out, seed)

    def fit_features(
        self, z: Any, y: Any = None, *, logits: Any = None, hold_out: float = 0.2, seed: int = 0
    ) -> Self:
        """Fit to a list of features [N, D_k], one per layer; see :meth:`Detector.fit_features`."""
        if not isinstance(z, list | tuple) or len(z) != len(self.parts):
            raise InputError(f"give a list of {len(self.parts)} arrays of features, one per layer")
        self._widths = [part.shape[1] for part in z]
        return super().fit_features(self._joined(z), y, logits=logits, hold_out=hold_out, seed=seed)

    def _note_widths(self, widths: list[int]) -> None:
        self._widths = widths

    def _joined(self, z: Any) -> Any:
        return torch.cat([torch.as_tensor(part) for part in z], 1) if _is_list(z) else z

    def _checked(self, z: Any, logits: Any) -> tuple[Tensor, Tensor | None]:
        return super()._checked(self._joined(z), logits)

    def settle(self, known: Known) -> None:
        """Fit a detector to each layer, and choose the layers that count."""
        views = [replace(known, sample=rows, moments={}) for rows in self._split(known.some)]
        judges = [Judge(view) for view in views]
        for part, view in zip(self._detectors(), views, strict=True):
            part.learn(moments_of(view, part.wanted))
        make = self._makers[0]
        chosen = _greedy([judge.tasks(make) for judge in judges])
        weights = torch.zeros(len(self.parts))
        weights[chosen] = 1 / len(chosen)
        self._standardise([judge.inside(make) for judge in judges], weights)
        self.remember(widths=torch.tensor(self._widths))

    def _split(self, rows: Rows) -> list[Rows]:
        return [replace(rows, z=part) for part in rows.z.split(self._widths, 1)]

    def _views(self, z: Tensor) -> Sequence[Tensor]:
        views: Sequence[Tensor] = z.split(self._widths, 1)
        return views

    def _explained(self, z: Tensor, logits: Tensor | None) -> Explanation:
        seen = super()._explained(z, logits)
        with torch.no_grad():
            scores = self._blocked(lambda *some: self.standardised(*some)[0], z, logits)
        scores = torch.where(self.weights > 0, scores, -torch.inf)
        places = scores.argmax(1)
        names = [self.options["layers"][k] for k in places.tolist()]
        owners = (
            torch.arange(len(self.widths)).repeat_interleave(self.widths.cpu()).to(places.device)
        )
        direction = seen.direction * (owners == places[:, None])
        return seen._replace(
            layer=tuple(names), direction=nn.functional.normalize(direction, dim=1)
        )

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load what ``state_dict`` of a detector with the same options returned."""
        self._widths = state_dict["widths"].tolist()
        return super().load_state_dict(state_dict, *args, **kwargs)


def _is_list(z: Any) -> bool:
    return isinstance(z, list | tuple) and bool(z) and hasattr(z[0], "shape")


def _naming(weights: Tensor, groups: list[Tensor], classes: Tensor) -> int:
    """Return the first detector that counts and compares these classes; else the first."""
    counting = [k for k, weight in enumerate(weights.tolist()) if weight > 0]
    return next((k for k in counting if torch.equal(groups[k], classes)), counting[0])


def _maker(method: str, options: dict[str, Any]) -> Callable[[], Detector]:
    """Return what makes a detector, by the name of its method."""
    from mahalens.detection.choose import METHODS

    if method not in METHODS or issubclass(METHODS[method], Combined):
        raise InputError(f"method is {method!r}; give one of {', '.join(METHODS)}")
    return partial(METHODS[method], **options)


def _greedy(scores: list[list[Scores]], least: float = 0.002) -> list[int]:
    """Return the layers whose average separates best; scores by layer and task."""

    def worth(chosen: list[int]) -> float:
        tasks = zip(*(scores[k] for k in chosen), strict=True)
        areas = [area(task) for task in tasks]
        return sum(areas) / len(areas)

    order = sorted(range(len(scores)), key=lambda k: -worth([k]))
    chosen = order[:1]
    for k in order[1:]:
        if worth([*chosen, k]) > worth(chosen) + least:
            chosen.append(k)
    return sorted(chosen)
