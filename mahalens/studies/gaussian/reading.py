"""Trained models read against the Gaussian they were trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mahalens.auditing import gram_scale, match_rows, read_gram, read_layer, rows_to_read
from mahalens.nn import mahalanobis_model
from mahalens.studies.gaussian.metrics import METRICS
from mahalens.studies.gaussian.problem import Problem
from mahalens.train import Adam, MeanSquaredError, Newton, Status, TrialStack

LATE = 0.9
"""The last tenth of the epochs begins here."""

ARRIVED = 1e-3
"""A loss below this share of the targets' variance only moves with the noise of Adam's steps."""


@dataclass(frozen=True)
class ModelReading:
    """All trials of one model: how they ended and what their weights say.

    ``basins`` says where each trial lies: the end of the converging solver, started from it.
    """

    model: str
    stack: TrialStack
    statuses: list[str]
    basins: list[str]
    steps: list[int]
    seconds: float
    metrics: list[dict[str, float]]
    curve: tuple[Tensor, Tensor] | None = None
    method: str = "analytic"
    rows: Tensor = field(default_factory=lambda: torch.empty(0))  # [T, D] eigenvalue estimates
    gram: Tensor = field(default_factory=lambda: torch.empty(0))  # [T, D]

    @property
    def best(self) -> int | None:
        """The trial with the lowest training loss, if any is finite."""
        losses = [m["train_mse"] for m in self.metrics]
        finite = [t for t, loss in enumerate(losses) if math.isfinite(loss)]
        return min(finite, key=lambda t: losses[t]) if finite else None


def read_trained(
    problem: Problem, model: str, solver: Adam | Newton, basins: list[str]
) -> ModelReading:
    """Read every trial of a model that has been trained."""
    stack = solver.stack
    losses = solver.final_loss.tolist()
    late = _late_decrease(problem, solver)
    metrics, rows, gram = [], [], []
    nothing = torch.full((problem.config.dim,), torch.nan, dtype=torch.float64)
    for trial in range(len(stack)):
        # Its weights may still be finite where only the loss was too large for the dtype.
        if solver.statuses[trial] is Status.NON_FINITE:
            metrics.append(dict.fromkeys(METRICS, math.nan))
            estimates = (nothing, nothing)
        else:
            metrics.append(_metrics(problem, model, stack, trial, losses[trial], late[trial]))
            estimates = _eigenvalues(problem, model, stack, trial)
        rows.append(estimates[0])
        gram.append(estimates[1])
    return ModelReading(
        model=model,
        stack=stack,
        statuses=[status.value for status in solver.statuses],
        basins=basins,
        steps=solver.steps.tolist(),
        seconds=solver.seconds,
        metrics=metrics,
        curve=solver.curve,
        method=solver.method if isinstance(solver, Newton) else "adam",
        rows=torch.stack(rows),
        gram=torch.stack(gram),
    )


def read_ground_truth(problem: Problem) -> ModelReading:
    """Read the analytic model, in the dtype of the run."""
    stack = _analytic(problem)
    loss = analytic_loss(problem)
    rows, gram = _eigenvalues(problem, "ground-truth", stack, 0)
    return ModelReading(
        model="ground-truth",
        stack=stack,
        statuses=["analytic"],
        basins=["zero residual"],
        steps=[0],
        seconds=0.0,
        metrics=[_metrics(problem, "ground-truth", stack, 0, loss, math.nan)],
        rows=rows[None],
        gram=gram[None],
    )


def analytic_loss(problem: Problem) -> float:
    """The training loss of the analytic model: what rounding leaves in the dtype of the run."""
    stack = _analytic(problem)
    return MeanSquaredError(stack.chain, problem.x, problem.y).loss(stack).item()


def _analytic(problem: Problem) -> TrialStack:
    gaussian = problem.gaussian.to(problem.x.dtype).to(device=problem.x.device)
    return TrialStack.from_modules(problem.chain("abs"), [mahalanobis_model(gaussian)])


def activation(model: str) -> str:
    """The activation by which a model's layer is read."""
    return "abs" if model == "ground-truth" else model


def _metrics(
    problem: Problem, model: str, stack: TrialStack, trial: int, train_mse: float, late: float
) -> dict[str, float]:
    x, y = problem.test_set(model, trial)
    with torch.no_grad():
        output = stack[trial](x).to("cpu", torch.float64)
    weight, bias = (tensor[trial] for tensor in stack.tensors().values())
    reading = read_layer(
        weight,
        bias,
        problem.gaussian,
        activation=activation(model),
        inputs=problem.x.to("cpu", torch.float64),
    )
    found = {
        "train_mse": train_mse,
        "test_mse": (output - y).square().mean().item(),
        "late_decrease": late,
        **reading,
    }
    return {name: found[name] for name in METRICS}


def _eigenvalues(
    problem: Problem, model: str, stack: TrialStack, trial: int
) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[D]`` read off the rows, matched to the true ones, and off WᵀW."""
    weight, bias = (tensor[trial] for tensor in stack.tensors().values())
    kind = activation(model)
    match = match_rows(rows_to_read(weight, kind), problem.gaussian)
    gram = read_gram(weight, bias, problem.gaussian, scale=gram_scale(kind))
    return match.eigenvalues, gram.eigenvalues


def _late_decrease(problem: Problem, solver: Adam | Newton) -> list[float]:
    """Share of the loss that went in the last tenth of the epochs; for Adam only."""
    epochs, losses = solver.curve
    begin = int((epochs <= LATE * problem.config.epochs).sum()) - 1
    if isinstance(solver, Newton) or begin < 0:  # a single epoch has no last tenth
        return [math.nan] * len(solver.statuses)
    before, after = losses[begin].double(), losses[-1].double()
    floor = ARRIVED * problem.y.double().var(correction=0)
    decrease: list[float] = ((before - after) / before.maximum(floor)).tolist()
    return decrease
