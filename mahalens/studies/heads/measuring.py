"""Trains one network of a trial and measures all models that read it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn import DistanceHead
from mahalens.studies.heads import scores
from mahalens.studies.heads.backbone import Backbone, Seen, look
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.detectors import class_distance, neighbours
from mahalens.studies.heads.metrics import METRICS
from mahalens.studies.heads.models import DISTANCE, ENSEMBLE, MEMBERS, READERS, SOFTMAX
from mahalens.studies.heads.task import Task, task_of
from mahalens.studies.heads.training import distance_network, kernel_network, softmax_network
from mahalens.studies.paired.config import Job
from mahalens.studies.paired.measures import Measures, join

PARTS = ("held", "test", "unknown", "shuffled")
FITTED_TO = 20_000
"""So many training samples are enough for an ellipsoid of some hundred dimensions."""
RIDGE = 1e-3


@dataclass(frozen=True)
class Said:
    """What a model says of the samples of a task.

    ``logits`` of held-out and of test samples, ``scores`` of all parts, high where a sample is
    like nothing known; ``rejected``: in per cent, of the test and of the unknown samples.
    """

    logits: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]
    rejected: tuple[float, float] | None = None

    @property
    def finite(self) -> bool:
        """Whether all of it are numbers."""
        said = (*self.logits.values(), *self.scores.values())
        return all(bool(values.isfinite().all()) for values in said)


def measure(config: HeadsConfig, job: Job) -> dict[str, Measures]:
    """Train the network that a job is about, in each of its trials, and measure its readers."""
    found: dict[str, list[Measures]] = {}
    for trial in job.trials:
        for model, own in _of_trial(config, job, trial).items():
            found.setdefault(model, []).append(own)
    return {model: join(parts) for model, parts in found.items()}


def _of_trial(config: HeadsConfig, job: Job, trial: int) -> dict[str, Measures]:
    began = time.perf_counter()
    task = task_of(config, job.data, trial)
    said, seconds, weights = _NETWORKS[job.work](config, task, trial)
    wanted = [model for model in READERS[job.work] if model in config.models]
    shared = (time.perf_counter() - began) / max(1, len(wanted))
    measures = {}
    for model in wanted:
        numbers = numbers_of(said.get(model), task, config.reject_rate)
        numbers["seconds"] = seconds * (MEMBERS if model == ENSEMBLE else 1)
        metrics = {
            name: torch.tensor([number], dtype=torch.float64) for name, number in numbers.items()
        }
        kept = weights if model == job.work else {}
        measures[model] = Measures(metrics, shared, weights=kept)
    return measures


def numbers_of(said: Said | None, task: Task, rate: float) -> dict[str, float]:
    """All numbers of one model in one trial; NaN where training has lost its way."""
    if said is None or not said.finite:
        return dict.fromkeys((name for name in METRICS if name != "seconds"), math.nan)
    held, test = said.logits["held"], said.logits["test"]
    temperature = scores.temperature(held, task.held_y)
    known, unknown = said.scores["test"], said.scores["unknown"]
    rejected = said.rejected or scores.rejected(said.scores["held"], rate, known, unknown)
    # Without a temperature there are no calibrated errors, rather than those of a made-up one.
    calibrated = test / temperature if math.isfinite(temperature) else None
    return {
        "test_accuracy": scores.accuracy(test, task.test_y),
        "auroc": scores.auroc(known, unknown),
        "auroc_shuffled": scores.auroc(known, said.scores["shuffled"]),
        "missed_at_95": scores.missed_at_95(known, unknown),
        "rejected_known": rejected[0],
        "rejected_unknown": rejected[1],
        "ece": scores.calibration_error(test, task.test_y),
        "ece_calibrated": math.nan
        if calibrated is None
        else scores.calibration_error(calibrated, task.test_y),
        "nll": scores.negative_log_likelihood(test, task.test_y),
        "nll_calibrated": math.nan
        if calibrated is None
        else scores.negative_log_likelihood(calibrated, task.test_y),
    }


Outcome = tuple[dict[str, Said | None], float, dict[str, Tensor]]
"""What the models say, None where one cannot; the time of training; the weights."""


def _see(backbone: Backbone, task: Task) -> dict[str, Seen]:
    """What a network makes of all parts of a task, and of the samples that heads are fitted to."""
    parts = {"fit": task.x[: to_fit(task.y)], "held": task.held_x, "test": task.test_x}
    parts |= {"unknown": task.unknown, "shuffled": task.shuffled}
    return {name: look(backbone, x) for name, x in parts.items()}


def to_fit(y: Tensor) -> int:
    """How many of the training samples to fit to: the first, or all if a class is rare there."""
    first = y[:FITTED_TO]
    shares = torch.bincount(first, minlength=int(y.max()) + 1) / torch.bincount(y)
    return len(first) if float(shares.min()) > 0.5 * len(first) / len(y) else len(y)


def _softmax(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, linear, seconds = softmax_network(config, task, trial)
    seen = {name: one.features for name, one in _see(backbone, task).items()}
    if not all(bool(features.isfinite().all()) for features in seen.values()):
        return {}, seconds, _weights(backbone, linear)
    with torch.no_grad():
        logits = {name: linear(seen[name]) for name in PARTS}
    said: dict[str, Said | None] = {}
    said["softmax"] = Said(logits, {k: -z.softmax(-1).amax(-1) for k, z in logits.items()})
    said["energy"] = Said(logits, {k: -z.logsumexp(-1) for k, z in logits.items()})
    y = task.y[: len(seen["fit"])]
    for model, scorer in (
        ("knn", neighbours(seen["fit"], config.seed, trial)),
        ("mahalanobis", class_distance(seen["fit"], y, relative=False)),
        ("relative-mahalanobis", class_distance(seen["fit"], y, relative=True)),
    ):
        if model in config.models:
            said[model] = Said(logits, {name: scorer(seen[name]) for name in PARTS})
    if "fitted" in config.models:
        said["fitted"] = said_by(None, y, seen, config)
    if ENSEMBLE in config.models:
        said[ENSEMBLE] = _ensemble(config, task, trial, logits)
    return said, seconds, _weights(backbone, linear)


def _ensemble(config: HeadsConfig, task: Task, trial: int, first: Mapping[str, Tensor]) -> Said:
    """The mean probabilities of the trial's own network and four more, all of them its own."""
    total = {name: logits.double().softmax(-1) for name, logits in first.items()}
    for member in range(1, MEMBERS):
        backbone, linear, _ = softmax_network(config, task, trial, member)
        seen = _see(backbone, task)
        with torch.no_grad():
            for name in PARTS:
                total[name] += linear(seen[name].features).double().softmax(-1)
    means = {name: sums / MEMBERS for name, sums in total.items()}
    tiny = torch.finfo(torch.float64).tiny
    logs = {name: mean.clamp(min=tiny).log() for name, mean in means.items()}
    return Said(logs, {name: -(means[name] * logs[name]).sum(-1) for name in PARTS})


def _distance(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, head, seconds = distance_network(config, task, trial)
    seen = _see(backbone, task)
    last = {name: one.features for name, one in seen.items()}
    y = task.y[: len(last["fit"])]
    said = {"distance": said_by(head, y, last, config)}
    if "refitted" in config.models:
        said["refitted"] = said_by(None, y, last, config)
    if "layered" in config.models:
        # One head says which class, the other, which sees all layers, whether it is any of them.
        every = {name: one.layers for name, one in seen.items()}
        which, watch = said["distance"], said_by(None, y, every, config)
        said["layered"] = which and watch and replace(watch, logits=which.logits)
    return said, seconds, _weights(backbone, head)


def fitted_head(features: Tensor, y: Tensor) -> DistanceHead:
    """A head with one ellipsoid for all classes, in closed form from features [N, D]."""
    width = features.shape[1]
    head = DistanceHead(width, int(y.max()) + 1, metric="shared", rank=width, logits="squared")
    return head.fit_prototypes(features, y, ridge=RIDGE)


@torch.no_grad()
def said_by(
    head: DistanceHead | None, y: Tensor, seen: Mapping[str, Tensor], config: HeadsConfig
) -> Said | None:
    """What a distance head says, its reject option set and asked as a user would.

    Without a head, what one says that is fitted to the features with labels y. None where there
    is nothing to fit it to: features that are no numbers, or the same for all.
    """
    try:
        head = head or fitted_head(seen["fit"], y)
        head.set_reject(seen["held"], config.reject_rate)
        found = {name: head.assess(seen[name]) for name in PARTS}
    except InputError:
        return None
    return Said(
        logits={name: head(seen[name]) for name in ("held", "test")},
        scores={name: one.score for name, one in found.items()},
        rejected=(_per_cent(found["test"].rejected), _per_cent(found["unknown"].rejected)),
    )


def _duq(config: HeadsConfig, task: Task, trial: int) -> Outcome:
    backbone, head, seconds = kernel_network(config, task, trial)
    seen = _see(backbone, task)
    with torch.no_grad():
        logs = {name: head.log_kernels(seen[name].features) for name in PARTS}
    # Among so many samples, exp would round the smallest kernels to one and the same 0.
    far = {name: -kernel.amax(-1) for name, kernel in logs.items()}
    return {"duq": Said(logs, far)}, seconds, {}


def _weights(backbone: torch.nn.Module, head: torch.nn.Module) -> dict[str, Tensor]:
    """Both as they are in a state_dict, with an axis for the trial before the others."""
    both = {"backbone": backbone.state_dict(), "head": head.state_dict()}
    return {
        f"{part}.{name}": tensor.detach().clone()[None]
        for part, state in both.items()
        for name, tensor in state.items()
    }


def _per_cent(which: Tensor) -> float:
    return 100 * which.double().mean().item()


_NETWORKS = {SOFTMAX: _softmax, DISTANCE: _distance, "duq": _duq}
