"""Training of many trials in one call, with a checkpoint."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.files import open_file, write_file
from mahalens.geometry._checks import tensor_of, whole_tensor_of
from mahalens.progress import Display
from mahalens.train.descent import SGD, Adam, Batches, Descent
from mahalens.train.objective import OBJECTIVES
from mahalens.train.second_order import Newton
from mahalens.train.solver import Metrics, solve
from mahalens.train.stack import TrialStack, stack

_SOLVERS: dict[str, type[SGD] | type[Adam] | type[Newton]] = {
    "sgd": SGD,
    "adam": Adam,
    "newton": Newton,
}


def fit(
    trials: TrialStack | Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    loss: str = "mse",
    solver: str = "adam",
    batch_size: int | None = None,
    seeds: int | Sequence[int] = 0,
    engine: str = "auto",
    own: bool = False,
    metrics: Metrics[Any] | None = None,
    at: Iterable[int] = (),
    checkpoint: str | Path | None = None,
    save_every: float | None = None,
    progress: bool = False,
    **options: Any,
) -> SGD | Adam | Newton:
    """Train trials and return the solver that did: ``.stack``, ``.final_loss``, ``.statuses``.

    Args:
        trials: stacked or plain modules, which are not changed.
        x: samples ``[N, D]``, or ``[T, N, D]`` where each trial has different ones (for modules
            that are not chains pass ``own=True`` then); a tensor or a NumPy array.
        y: labels ``[N]`` or targets ``[N, K]``, with a leading T as for x.
        epochs: epochs to train; for ``"newton"`` the most steps.
        loss: ``"mse"`` or ``"cross-entropy"``.
        solver: ``"sgd"``, ``"adam"`` or ``"newton"``, which trains until it converges.
        batch_size: size of mini-batches, shuffled by ``seeds``; full batches by default.
        seeds: one per trial, or one number for all.
        engine: ``"auto"``, ``"compiled"`` or ``"torch"``.
        own: whether modules that are not chains have different data for each trial.
        metrics: function of the solver, called at the epochs ``at``; see
            :func:`mahalens.train.solve`.
        at: epochs at which ``metrics`` is called, besides the last.
        checkpoint: file that receives the state now and then; the same call resumes from it.
        save_every: seconds between two writes of the checkpoint, by default 20.
        progress: whether to show a progress bar.
        options: options of the solver: ``lr``, also one per trial, ``momentum``, ``betas``,
            ``target``, ``patience``, ``gain``; see :class:`mahalens.train.Descent`.

    >>> from mahalens import Chain
    >>> chain = Chain.parse("Linear(8), Tanh, Linear(3)", inputs=2)
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    >>> done = fit(
    ...     TrialStack.from_seeds(chain, range(5)), x, labels, loss="cross-entropy",
    ...     epochs=200, lr=0.05,
    ... )
    >>> bool((done.final_loss < 0.2).all()), type(done.stack[3]).__name__
    (True, 'Sequential')
    """
    start = trials if isinstance(trials, TrialStack) else stack(trials)
    objective_type = _lookup("loss", loss, OBJECTIVES)
    solver_type = _lookup("solver", solver, _SOLVERS)
    x = tensor_of("x", x, start.values)
    labels = loss == "cross-entropy"
    y = whole_tensor_of("y", y) if labels else tensor_of("y", y, start.values)
    samples: dict[str, Any] = {"x": x, "y": y}
    for name, value in samples.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise InputError(f"{name} is a {kind}; give a tensor or a NumPy array")
    objective = objective_type(start.model, x, y, engine=engine, own=own)
    if batch_size is not None:
        if solver_type is Newton:
            raise InputError("solver 'newton' is for the full batch; leave batch_size out")
        options["batches"] = Batches(batch_size, seeds)
    _check_options(solver, solver_type, options)
    running: SGD | Adam | Newton = solver_type(objective, start, epochs, **options)
    save = None
    if checkpoint is not None:
        file = _Checkpoint(
            Path(checkpoint), _describe(running, start, epochs, loss, solver, options)
        )
        file.restore(running)
        save = file.save
    with Display(quiet=not progress) as display:
        report = display.stage(solver)
        report(running)
        solve(running, metrics=metrics, at=at, save=save, every=save_every, on_progress=report)
    return running


def _lookup(what: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise InputError(f"{what} {name!r}; known: {', '.join(table)}")
    return table[name]


def _check_options(solver: str, solver_type: type, options: dict[str, Any]) -> None:
    """Refuse options that the solver does not have."""
    types = (solver_type, Descent) if issubclass(solver_type, Descent) else (solver_type,)
    known = [
        parameter.name
        for kind in types
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            listed = ", ".join(n for n in known if n != "batches") or "none"
            raise InputError(f"option {name!r} of solver {solver!r}; known: {listed}")


class _Checkpoint:
    """A file with a solver's state and a description of the fit it belongs to."""

    def __init__(self, path: Path, description: dict[str, str]) -> None:
        self.path, self.description = path, description

    def save(self, state: dict[str, Tensor]) -> None:
        import safetensors.torch

        checksum = _digest(*(state[name] for name in sorted(state)))
        metadata = {**self.description, "checksum": checksum}
        write_file(self.path, safetensors.torch.save(state, metadata=metadata))

    def restore(self, solver: SGD | Adam | Newton) -> None:
        if not self.path.exists():
            return
        from safetensors import SafetensorError, safe_open

        try:
            with open_file(self.path), safe_open(self.path, framework="pt") as file:
                saved = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{self.path}: cannot be read as a checkpoint ({error}); give another file"
            ) from None
        for name, value in self.description.items():
            if saved.get(name) != value:
                raise InputError(
                    f"{self.path}: is the checkpoint of another fit ({name} was "
                    f"{saved.get(name)}, not {value}); give another file"
                )
        checksum = _digest(*(state[name] for name in sorted(state)))
        if saved.get("checksum", checksum) != checksum:  # earlier versions wrote none
            raise InputError(
                f"{self.path}: is damaged (its checksum does not fit); delete it to train from the "
                "start"
            )
        try:
            solver.restore(state)
        except KeyError as error:
            raise InputError(f"{self.path}: has no {error}; give another file") from None


def _digest(*tensors: Tensor) -> str:
    """Return a short hash of the contents of these tensors."""
    digest = hashlib.blake2b(digest_size=12)
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _describe(
    solver: SGD | Adam | Newton,
    start: TrialStack,
    epochs: int,
    loss: str,
    name: str,
    options: dict[str, Any],
) -> dict[str, str]:
    objective = solver.objective
    shown = {
        key: value.tolist() if isinstance(value, Tensor) else value
        for key, value in options.items()
    }
    return {
        "model": str(objective.model),
        "loss": loss,
        "solver": name,
        "engine": objective.engine,
        "samples": str(objective.samples),
        "epochs": str(epochs),
        "options": str(sorted(shown.items(), key=lambda item: item[0])),
        "data": _digest(objective.x, objective.y),
        "start": _digest(start.values),
        "torch": str(torch.__version__),
    }
