"""Base of all detectors: fitting in one pass, scores, thresholds, explanations, files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from mahalens._show import facts_html
from mahalens.detection.features import BEFORE, Source
from mahalens.detection.known import (
    Gatherer,
    Known,
    Rows,
    Wanted,
    blocks,
    check_features,
    tensor_of,
)
from mahalens.detection.threshold import Calibration, require_enough
from mahalens.errors import InputError
from mahalens.files import replacing

RATE = 0.05
"""Share of known samples that is rejected unless :meth:`Detector.set_reject` sets another."""

CONSTANT = (
    "all known samples have the same features; give features of a layer that tells samples apart"
)
_KEY = "mahalens.detector"


class Explanation(NamedTuple):
    """The answer of a detector about N samples.

    ``label`` [N]: the nearest known class, as it was labelled (0 where there were no labels);
    ``score`` [N]; ``distance`` [N] to that class (the score, where a method has no distances);
    ``p_value`` [N]: the share of known samples that are as unusual; ``reject`` [N]; ``layer``: for
    each sample the layer where it is most unusual; ``direction`` [N, D]: of length 1, along which
    the features of that layer would become unusual fastest (of several layers side by side, 0 in
    the columns of the others).
    """

    label: Tensor
    score: Tensor
    distance: Tensor
    p_value: Tensor
    reject: Tensor
    layer: tuple[str, ...]
    direction: Tensor


class Detector(nn.Module):
    """Base of the detectors: scores that are the larger, the less a sample is like known ones.

    A subclass says what it wants to know about the known samples (:attr:`wanted`), makes buffers
    of it (:meth:`settle`), and turns features into scores and nearest classes (:meth:`forward`).
    Everything else is here: one pass over a loader or an array with bounded memory, a held-out part
    of the known samples that sets the threshold, p-values, explanations, files.

    A detector is an ``nn.Module`` without parameters. Its ``state_dict`` holds all it has learned,
    the threshold too, and can be loaded into a new detector of the same class and options.
    """

    method: ClassVar[str]
    needs_labels: bool = True
    needs_classes: int = 1

    inputs: Tensor
    classes: Tensor
    held_scores: Tensor
    held_groups: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.calibration: Calibration | None = None
        self.layer: tuple[str, ...] = ("features",)
        self._named = False  # whether layer has names of modules
        self.choice: Any = None
        object.__setattr__(self, "_source", None)  # a model is not part of its detector

    # For subclasses

    @property
    def wanted(self) -> Wanted:
        """What the detector has to know about the known samples."""
        raise NotImplementedError

    def settle(self, known: Known) -> None:
        """Set the buffers from what was gathered."""
        raise NotImplementedError

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the nearest class among ``classes``: [N] each."""
        raise NotImplementedError

    def distance(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the distance to the nearest class [N]; the score, where there are no distances."""
        score: Tensor = self(z, logits)[0]
        return score

    def remember(self, **buffers: Tensor) -> None:
        """Set buffers by name."""
        with torch.inference_mode(False):  # explanations need gradients through the buffers
            for name, value in buffers.items():
                value = value.clone() if value.is_inference() else value.detach()
                self.register_buffer(name, value.contiguous())

    # Fitting

    def fit(
        self,
        model: nn.Module,
        loader: Any,
        *,
        layer: str | None = None,
        hold_out: float = 0.2,
        seed: int = 0,
    ) -> Self:
        """Fit to known samples, in one pass over a loader.

        The model is run in evaluation mode and left as it was. Memory does not grow with the number
        of samples.

        Args:
            model: any network.
            loader: a DataLoader of (x, y) batches; also a Dataset, or a pair of tensors.
            layer: name of the module whose output is the feature. By default what the last
                ``nn.Linear`` is fed if it makes the model's output, otherwise the output.
            hold_out: share of the samples that sets the threshold, at most 5,000.
            seed: of the draw of held-out samples.
        """
        source = Source(model, None if layer is None else [layer])
        return self._fit_source(source, loader, hold_out, seed)

    def _fit_source(self, source: Source, loader: Any, hold_out: float, seed: int) -> Self:
        gatherer = self._gatherer(hold_out, seed)
        for place, reading in enumerate(source.read(loader)):
            if not place:
                gatherer.labelled = self.needs_labels or reading.labels is not None
                self._note_widths([part.shape[1] for part in reading.features])
            gatherer.add(torch.cat(reading.features, 1), reading.labels, reading.logits)
        self._finish(gatherer.finish(source.linear))
        return self.bind(source)

    def _note_widths(self, widths: list[int]) -> None:
        """Hear how wide the features of each layer are."""

    def fit_features(
        self, z: Any, y: Any = None, *, logits: Any = None, hold_out: float = 0.2, seed: int = 0
    ) -> Self:
        """Fit to features z [N, D] of known samples with labels y [N], and logits [N, L] if any.

        Arrays or tensors. Labels are any whole numbers, also with gaps. See :meth:`fit`.
        """
        self._finish(gathered(self._gatherer(hold_out, seed, y is not None), z, y, logits).finish())
        # The model of an earlier fit has nothing to do with these features.
        names = self.options.get("layers")
        self._named = names is not None
        self.layer = ("features",) if names is None else tuple(names)
        object.__setattr__(self, "_source", None)
        return self

    def _gatherer(self, hold_out: float, seed: int, labelled: bool = True) -> Gatherer:
        labelled = labelled or self.needs_labels
        return Gatherer(self.wanted, hold_out=hold_out, seed=seed, labelled=labelled)

    def _finish(self, known: Known) -> None:
        self.learn(known)
        self.calibrate(known)

    def bind(self, source: Source) -> Self:
        """Take the features of new samples from this source."""
        self.layer, self._named = source.names, source.layers is not None
        object.__setattr__(self, "_source", source)
        return self

    @torch.inference_mode(False)
    def learn(self, known: Known) -> None:
        """Set everything but the threshold from what was gathered, and forget any earlier fit."""
        if len(known.classes) < self.needs_classes:
            raise InputError(
                f"the known samples have {len(known.classes)} class, but "
                f"{type(self).__name__} compares classes; use Marginal or Neighbours"
            )
        if self.needs_labels and len(known.classes) > 1 and int(known.counts.max()) == 1:
            raise InputError(
                f"each of {len(known.classes)} samples has a different label; give labels of "
                "classes with several samples, or use Marginal or Neighbours"
            )
        if known.sample is not None and bool((known.sample.z == known.sample.z[0]).all()):
            raise InputError(CONSTANT)
        self.calibration = None
        self._buffers.clear()
        self.remember(inputs=torch.tensor(known.width), classes=known.classes.to(known.device))
        self.settle(known)

    def calibrate(self, known: Known) -> None:
        """Remember the scores of the held-out samples, and set the usual reject rate if it can."""
        scores, groups = self._run(known.held.z, known.held.logits)
        self.remember(held_scores=scores, held_groups=groups)
        try:
            require_enough(len(scores), RATE)
        except InputError:  # raised again, with a remedy, once a threshold is asked for
            return
        self.set_reject(RATE)

    # Scores

    def score(self, x: Any) -> Tensor:
        """Return the score of each sample [N]; x is a batch of inputs, or a loader."""
        return torch.cat([self._run(*parts)[0] for parts in self._read(x)])

    def score_features(self, z: Any, *, logits: Any = None) -> Tensor:
        """Return the score of each row of features [N, D]: larger = less like anything known."""
        return self._run(*self._checked(z, logits))[0]

    def set_reject(self, rate: float) -> Self:
        """Set the share of known samples to reject, from the held-out part of the fit.

        A known sample is rejected with probability ``rate``, on average over draws of the held-out
        samples; see :class:`~mahalens.detection.Calibration`. Classes with 100 held-out samples or
        more have a threshold of their own.
        """
        self._require_fit()
        if not len(self.held_scores):
            raise InputError(
                "no samples were held out, so that no threshold can be set; fit with hold_out=0.2"
            )
        with torch.inference_mode(False):
            self.calibration = Calibration(
                self.held_scores, self.held_groups, group_count=len(self.classes), rate=rate
            )
        return self

    def reject(self, x: Any) -> Tensor:
        """Return True [N] for samples to reject."""
        calibration = self._require_calibration()
        return torch.cat([calibration.reject(*self._run(*parts)) for parts in self._read(x)])

    def reject_features(self, z: Any, *, logits: Any = None) -> Tensor:
        """Return True [N] for rows of features to reject."""
        return self._require_calibration().reject(*self._run(*self._checked(z, logits)))

    def p_value(self, x: Any) -> Tensor:
        """Return the share of known samples that are as unusual as each sample [N]."""
        calibration = self._require_calibration()
        return torch.cat([calibration.p_value(*self._run(*parts)) for parts in self._read(x)])

    def p_value_features(self, z: Any, *, logits: Any = None) -> Tensor:
        """Return the share of known samples that are as unusual as each row of features [N]."""
        return self._require_calibration().p_value(*self._run(*self._checked(z, logits)))

    def explain(self, x: Any) -> Explanation:
        """Explain each sample: nearest class, distance, p-value, rejection, layer, direction."""
        parts = [self._explained(*parts) for parts in self._read(x)]
        layers = tuple(name for part in parts for name in part.layer)
        joined = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in Explanation._fields
            if name != "layer"
        }
        return Explanation(layer=layers, **joined)

    def explain_features(self, z: Any, *, logits: Any = None) -> Explanation:
        """Explain each row of features; see :meth:`explain`."""
        return self._explained(*self._checked(z, logits))

    def _explained(self, z: Tensor, logits: Tensor | None) -> Explanation:
        calibration = self._require_calibration()
        scores, places = self._run(z, logits)
        with torch.no_grad():
            distances = self._blocked(self.distance, z, logits)
        return Explanation(
            label=self.classes[places],
            score=scores,
            distance=distances,
            p_value=calibration.p_value(scores, places),
            reject=calibration.reject(scores, places),
            layer=self.layer * len(z),
            direction=self._blocked(self._direction, z, logits),
        )

    def _direction(self, z: Tensor, logits: Tensor | None) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            z = z.detach().clone().requires_grad_()
            logits = None if logits is None else logits.detach().clone()
            score = self(z, logits)[0].sum()
            slope = (
                torch.autograd.grad(score, z)[0] if score.requires_grad else z.new_zeros(z.shape)
            )
        return nn.functional.normalize(slope, dim=1)

    def run(self, rows: Rows) -> Tensor:
        """Return the scores of gathered rows [n]."""
        return self._run(rows.z, rows.logits)[0]

    @torch.no_grad()
    def _run(self, z: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = [self(z[rows], None if logits is None else logits[rows]) for rows in self._rows(z)]
        if not parts:
            return z.new_zeros(0), torch.zeros(0, dtype=torch.long, device=z.device)
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _blocked(self, function: Any, z: Tensor, logits: Tensor | None) -> Tensor:
        parts = [
            function(z[rows], None if logits is None else logits[rows]) for rows in self._rows(z)
        ]
        return torch.cat(parts) if parts else z.new_zeros(0)

    def _rows(self, z: Tensor) -> Iterator[slice]:
        return blocks(len(z), max(z.shape[1], self.columns))

    @property
    def columns(self) -> int:
        """Numbers per sample that scoring makes, so that blocks of rows bound the memory."""
        return len(self.classes)

    def scorer(self) -> Scorer:
        """Return a plain module, features [N, D] to (score, p-value, reject), to be exported.

        >>> from mahalens.detection import Mahalanobis
        >>> z = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> scorer = Mahalanobis().fit_features(z, torch.arange(200) % 2).scorer()
        >>> rows = {"z": {0: torch.export.Dim("rows")}}
        >>> program = torch.export.export(scorer, (z[:2],), dynamic_shapes=rows)
        >>> program.module()(z)[0].shape
        torch.Size([200])
        """
        self._require_calibration()
        return Scorer(self)

    # Inputs and state

    def attach(self, model: nn.Module) -> Self:
        """Take the features from this model; after :meth:`load`, which does not load a model."""
        self._require_fit()
        source = Source(model, list(self.layer) if self._named else None)
        object.__setattr__(self, "_source", source)
        return self

    def _read(self, x: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
        self._require_fit()
        source: Source | None = vars(self)["_source"]
        if source is None:
            raise InputError(
                "this detector has no model; call attach(model), or score_features(z) with features"
            )
        for reading in source.read(x, labelled=False):
            yield self._checked(torch.cat(reading.features, 1), reading.logits)

    def _checked(self, z: Any, logits: Any) -> tuple[Tensor, Tensor | None]:
        self._require_fit()
        z = check_features(z, width=self.width).to(self.held_scores.device)
        if logits is None:
            return z, None
        return z, check_features(logits, "logits", rows=len(z)).to(z.device)

    @property
    def width(self) -> int:
        """D, the number of features."""
        return int(self.inputs)

    def _require_fit(self) -> None:
        if "held_scores" not in self._buffers:
            raise InputError(
                f"this {type(self).__name__} is not fitted; call fit(model, loader) or "
                "fit_features(z, y) first"
            )

    def _require_calibration(self) -> Calibration:
        self._require_fit()
        if self.calibration is None:
            raise InputError(
                f"only {len(self.held_scores)} samples were held out, too few for a reject rate of "
                f"{RATE:g}; call set_reject(rate) with a larger one, or fit to more samples"
            )
        return self.calibration

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        # Buffers come into being with the fit: a new detector takes those of the file.
        for name, value in state_dict.items():
            key = name.removeprefix(prefix)
            if name.startswith(prefix) and "." not in key:
                self.register_buffer(key, torch.empty_like(value))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load what ``state_dict`` of a detector with the same options returned."""
        if any(name.startswith("calibration.") for name in state_dict):
            self.calibration = Calibration(torch.arange(99, dtype=state_dict["held_scores"].dtype))
        return super().load_state_dict(state_dict, *args, **kwargs)

    # Files

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: all that was learned, with method and options as metadata."""
        from safetensors.torch import save_file

        self._require_fit()
        tensors = {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}
        written = {
            "method": self.method,
            "options": self.options,
            "layer": self.layer,
            "named": self._named,
        }
        with replacing(Path(path)) as temporary:
            save_file(tensors, temporary, {_KEY: json.dumps(written)})

    @staticmethod
    def load(path: str | Path) -> Detector:
        """Read a detector of any class that :meth:`save` wrote."""
        from safetensors import SafetensorError, safe_open

        from mahalens.detection.choose import METHODS

        try:
            with safe_open(str(path), framework="pt") as file:
                written = json.loads((file.metadata() or {}).get(_KEY, "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, json.JSONDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: cannot be read as a detector ({reason})") from None
        if not isinstance(written, dict) or written.get("method") not in METHODS:
            raise InputError(f"{path}: is not a detector; give a file that Detector.save wrote")
        detector = METHODS[written["method"]](**written["options"])
        detector.layer = tuple(written["layer"])
        first = detector.layer[0]  # files of earlier versions have only this
        usual = first in ("features", "output") or first.startswith(BEFORE)
        detector._named = written.get("named", not usual)
        detector.load_state_dict(tensors)
        return detector

    def _repr_html_(self) -> str:
        """Return what it was fitted to and what it rejects, and how its method was chosen."""
        facts: dict[str, Any] = {"method": self.method, "options": self.extra_repr() or "none"}
        if "held_scores" not in self._buffers:
            return facts_html(type(self).__name__, facts | {"fitted": "no"})
        facts |= {
            "features": self.width,
            "from": ", ".join(self.layer),
            "classes": len(self.classes),
            "held-out samples": len(self.held_scores),
            "rejects": "no threshold is set",
        }
        if self.calibration is not None:
            facts["rejects"] = f"{float(self.calibration.rate):.3g} of known samples"
        reason = [self.choice.reason] if self.choice is not None else []
        return facts_html(type(self).__name__, facts, reason)

    def extra_repr(self) -> str:
        """Return the options that differ from nothing."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class Scorer(nn.Module):
    """A fitted detector as a function of features alone; made by :meth:`Detector.scorer`."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return score, p-value and rejection of each row: [N, D] to [N] each."""
        scores, places = self.detector(z, logits)
        calibration = self.detector.calibration
        assert calibration is not None
        return scores, calibration.p_value(scores, places), calibration.reject(scores, places)


def gathered(gatherer: Gatherer, z: Any, y: Any, logits: Any) -> Gatherer:
    """Show arrays to a gatherer, block by block."""
    z = tensor_of(z, "features")
    others = [
        None if value is None else tensor_of(value, name)
        for name, value in (("labels", y), ("logits", logits))
    ]
    if z.dtype in (torch.float32, torch.float64) or z.ndim != 2:
        check_features(z)  # as a whole, which costs no copy, so that all bad rows are counted
    for name, value in zip(("labels", "rows of logits"), others, strict=True):
        if value is not None and value.ndim and len(value) != len(z):
            raise InputError(
                f"there are {len(z)} samples but {len(value)} {name}; give one per sample"
            )
    for rows in blocks(len(z), z.shape[1]):
        gatherer.add(z[rows], *(None if value is None else value[rows] for value in others))
    return gatherer
