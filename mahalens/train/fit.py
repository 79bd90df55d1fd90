"""Train many trials in one call."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.console import Display
from mahalens.errors import InputError
from mahalens.files import open_file, write_file
from mahalens.train.adam import Adam
from mahalens.train.batches import Batches
from mahalens.train.drive import Metrics, solve
from mahalens.train.newton import Newton
from mahalens.train.objective import OBJECTIVES
from mahalens.train.sgd import SGD
from mahalens.train.stack import TrialStack, stack

SOLVERS: dict[str, type[SGD] | type[Adam] | type[Newton]] = {
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
    progress: bool = False,
    **options: Any,
) -> SGD | Adam | Newton:
    """Train trials and return the solver that did: ``.stack``, ``.final_loss``, ``.statuses``.

    ``trials`` are stacked or plain modules, which are not changed; ``loss`` is ``"mse"`` or
    ``"cross-entropy"``; ``solver`` is ``"sgd"``, ``"adam"`` or ``"newton"`` (converging: there
    ``epochs`` is the most steps it may take). ``options`` go to the solver: ``lr``, also one per
    trial, ``momentum``, ``betas``, ``target``, ``patience``, ``gain``. Mini-batches of
    ``batch_size`` are shuffled by ``seeds``. With ``checkpoint`` a file keeps the state every 20
    seconds, and the same call goes on from it. For ``metrics`` and ``at`` see
    :func:`mahalens.train.solve`.

    Shapes: x ``[N, D]``, y ``[N]`` or ``[N, K]``; with a leading T where each trial has its own
    (for modules that are no chains say ``own=True``).

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
    kind = _known("loss", loss, OBJECTIVES)
    make = _known("solver", solver, SOLVERS)
    objective = kind(start.model, x, y, engine=engine, own=own)
    if batch_size is not None:
        if make is Newton:
            raise InputError("solver 'newton' is for the full batch; leave batch_size out")
        options["batches"] = Batches(batch_size, seeds)
    allowed = list(inspect.signature(make).parameters)[3:]
    for name in options:
        if name not in allowed:
            listed = ", ".join(n for n in allowed if n != "batches") or "none"
            raise InputError(f"option {name!r} of solver {solver!r}; known: {listed}")
    running: SGD | Adam | Newton = make(objective, start, epochs, **options)
    save = None
    if checkpoint is not None:
        kept = _Checkpoint(
            Path(checkpoint), _describe(running, start, epochs, loss, solver, options)
        )
        kept.restore(running)
        save = kept.save
    with Display(quiet=not progress) as display:
        report = display.stage(solver)
        report(running)
        solve(running, metrics=metrics, at=at, save=save, on_progress=report)
    return running


class _Checkpoint:
    """A file with a solver's state, and what it is the state of."""

    def __init__(self, path: Path, what: dict[str, str]) -> None:
        self.path, self.what = path, what

    def save(self, state: dict[str, Tensor]) -> None:
        import safetensors.torch

        what = {**self.what, "checksum": _digest(*(state[name] for name in sorted(state)))}
        write_file(self.path, safetensors.torch.save(state, metadata=what))

    def restore(self, solver: SGD | Adam | Newton) -> None:
        if not self.path.exists():
            return
        from safetensors import SafetensorError, safe_open

        try:
            with open_file(self.path), safe_open(self.path, framework="pt") as file:
                found = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{self.path}: cannot be read as a checkpoint ({error}); give another file"
            ) from None
        for name, value in self.what.items():
            if found.get(name) != value:
                raise InputError(
                    f"{self.path}: is the checkpoint of another fit ({name} was "
                    f"{found.get(name)}, not {value}); give another file"
                )
        checksum = _digest(*(state[name] for name in sorted(state)))
        if found.get("checksum", checksum) != checksum:  # earlier versions wrote none
            raise InputError(
                f"{self.path}: is damaged (its checksum does not fit); delete it to train from the "
                "start"
            )
        try:
            solver.restore(state)
        except KeyError as error:
            raise InputError(f"{self.path}: has no {error}; give another file") from None


def _digest(*tensors: Tensor) -> str:
    """A short name for what is in these tensors."""
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


def _known(what: str, name: str, table: dict[str, Any]) -> Any:
    if name not in table:
        raise InputError(f"{what} {name!r}; known: {', '.join(table)}")
    return table[name]
