"""Trains one group of trials and reads it: a result that stands alone, wherever it was made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mahalens.studies.representation.latent import latent_distributions
from mahalens.studies.representation.problem import Group, Problem
from mahalens.studies.representation.reading import Reading, centre_metrics
from mahalens.studies.running import one_thread
from mahalens.train import SGD, Status, TrialStack, solve

CURVE_POINTS = 30
"""Epochs at which accuracy is measured."""

_BLOCK = 1 << 20  # hidden activations at once: few enough to stay in the cache

Result = dict[str, Tensor]


def measured_epochs(epochs: int) -> list[int]:
    """Epochs of the learning curve: before training, evenly on a log scale, and near the end.

    >>> measured_epochs(6)
    [0, 1, 2, 3, 4, 5, 6]
    """
    spaced = np.geomspace(1, epochs, CURVE_POINTS).round().astype(int).tolist()
    return sorted({0, *spaced, max(0, epochs - max(1, epochs // 10)), epochs})


def train_group(
    problem: Problem,
    group: Group,
    *,
    engine: str = "auto",
    state: dict[str, Tensor] | None = None,
    save: Callable[[dict[str, Tensor]], None] | None = None,
    on_progress: Callable[[SGD], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Train the trials of a group, from ``state`` if it was begun before, and read them.

    The result holds what the records need, one row per trial: final ``values``, ``losses`` and
    ``accuracies`` on their way, ``metric.*``, and for trial 0 ``latent.*``.
    """
    solver = problem.solver(group, engine=engine)
    if state is not None:
        solver.restore(state)
    _, test_x = problem.inputs(group.pixels)
    test_y = problem.data.test_y

    def accuracy(running: SGD) -> dict[str, Tensor]:
        return {"accuracy": accuracies(running.stack, test_x, test_y)}

    if on_progress is not None:
        on_progress(solver)
    solve(
        solver,
        metrics=accuracy,
        at=measured_epochs(problem.config.epochs),
        save=save,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    epochs, losses = solver.curve
    result = {
        "values": solver.stack.values,
        "codes": solver.codes,
        "steps": solver.steps,
        "seconds": torch.tensor(solver.seconds, dtype=torch.float64),
        "loss.epochs": epochs,
        "losses": losses.T,
        "accuracy.epochs": solver.history.epochs,
        "accuracies": solver.history["accuracy"].T,
        "metric.train_loss": solver.final_loss.double(),
    }
    curve = solver.history["accuracy"].T.double()
    for name, values in curve_metrics(solver.history.epochs, curve).items():
        result[f"metric.{name}"] = values
    result |= read_group(problem, group, solver.stack)
    # A trial whose numbers ran away has no reading.
    lost = solver.codes == Status.NON_FINITE.code
    for name, tensor in result.items():
        if name.startswith("metric."):
            result[name] = torch.where(lost, torch.nan, tensor)
    return {name: tensor.contiguous() for name, tensor in result.items()}


def read_group(problem: Problem, group: Group, stack: TrialStack) -> Result:
    """Everything that is read off trained weights; equal on any number of threads."""
    with one_thread():
        return _read(problem, group, stack)


def _read(problem: Problem, group: Group, stack: TrialStack) -> Result:
    classes = problem.data.classes
    x, test_x = problem.inputs(group.pixels)
    train = Reading(stack, x, problem.data.y, classes)
    test = Reading(stack, test_x, problem.data.test_y, classes)
    metrics = {
        "test_accuracy": test.accuracy,
        "train_accuracy": train.accuracy,
        **train.activity(),
        **{f"{name}_test": values for name, values in test.activity().items()},
        "silent_inputs": 100 * test.silent.double() / test.samples,
    }
    start = Reading(problem.start(group), x, problem.data.y, classes)
    metrics["dead_outputs_start"] = start.activity()["dead_outputs"]
    positions = train.positions(stack)
    metrics |= centre_metrics(positions)
    result = {f"metric.{name}": values for name, values in metrics.items()}
    result["positions"] = positions
    result["class_accuracies"] = test.class_accuracy
    result["output_activity"] = train.active_outputs.double() / train.samples
    if group.first == 0:
        latent = latent_distributions(stack, 0, x, problem.data.y, classes, problem.config.nodes)
        result |= {f"latent.{name}": tensor for name, tensor in latent.items()}
    return result


def accuracies(stack: TrialStack, x: Tensor, y: Tensor) -> Tensor:
    """Share of samples put into their class, in percent ``[T]``."""
    rows = max(16, _BLOCK // (len(stack) * max(stack.chain.widths[1:])))
    hits = torch.zeros(len(stack), dtype=torch.int64)
    with one_thread():
        for xs, ys in zip(x.split(rows), y.split(rows), strict=True):
            hits += (stack(xs).argmax(-1) == ys).sum(1)
    return 100 * hits.double() / len(y)


def curve_metrics(epochs: Tensor, accuracy: Tensor) -> Result:
    """When the accuracy ``[T, E]`` came to stay within a point of its last, and its late gain."""
    near = (accuracy - accuracy[:, -1:]).abs() <= 1.0
    stays = near.flip(1).cumprod(1).flip(1).bool()
    first = stays.to(torch.int64).argmax(1)
    late = int((epochs <= max(0, int(epochs[-1]) - max(1, int(epochs[-1]) // 10))).sum()) - 1
    return {
        "epochs_to_converge": epochs[first].double(),
        "late_gain": accuracy[:, -1] - accuracy[:, max(late, 0)],
    }
