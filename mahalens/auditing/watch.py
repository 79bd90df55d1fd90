"""Audits in a training loop: how many units are dead, repeat another or are saturated, by epoch."""

from __future__ import annotations

from typing import Any

from torch import nn

from mahalens._show import counted, cut, table_html
from mahalens.auditing.api import audit
from mahalens.auditing.record import AuditRecord, LayerRecord
from mahalens.errors import InputError, require_extra
from mahalens.geometry._checks import count_of

Metrics = dict[str, float]
_FAULTS = ("dead", "rare", "saturated", "duplicate", "mirrored")


class Watch:
    """Observer of a training: audits the network every few epochs and logs faulty units.

    Call it once per epoch. At epochs that ``every`` divides, it runs :func:`mahalens.audit` and
    logs these counts: of the network as ``audit/dead``, of each layer as ``audit/dead/LAYER``.

    ==============  ===========================================================================
    ``dead``        units that no sample makes active
    ``rare``        units active on less than the largest of the audit's ``rare`` shares (5 %)
    ``saturated``   units at a flat end of their activation on nearly all samples
    ``duplicate``   units with the same hyperplane as an earlier unit of the layer
    ``mirrored``    units with the opposite hyperplane
    ==============  ===========================================================================

    With labels, ``audit/accuracy`` is logged too. The audit leaves no trace in the training: modes,
    gradients, buffers and random states are as before.

    Args:
        data: as for :func:`mahalens.audit`; a few thousand samples are enough.
        every: epochs between two audits.
        log: where the numbers go: a TensorBoard ``SummaryWriter`` (or anything with
            ``add_scalar(name, value, step)``), a run of Weights & Biases (or anything with
            ``log(metrics)``), or a function ``log(metrics, epoch)``.
        **options: of :func:`mahalens.audit`. To be quick, the network is not compared with an
            untrained one, and no examples are kept: ``baseline="auto", examples=True`` change that.

    Attributes:
        record: the latest :class:`~mahalens.AuditRecord`; None before the first audit.
        history: by epoch, the numbers that were logged.

    Example:
        >>> import torch
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> _ = nn.init.constant_(model[0].bias, -9.0)
        >>> watch = Watch(x, every=10)
        >>> for epoch in range(20):
        ...     pass  # train the model
        ...     metrics = watch(model, epoch)
        >>> watch.history[10]["audit/dead"], watch.record.layers[0].units.dead
        (4.0, (0, 1, 2, 3))
    """

    record: AuditRecord | None

    def __init__(self, data: Any, *, every: int = 1, log: Any = None, **options: Any) -> None:
        self.data, self.every, self.options = data, count_of("every", every), options
        self.record = None
        self.history: dict[int, Metrics] = {}
        if not (log is None or callable(log) or hasattr(log, "add_scalar") or hasattr(log, "log")):
            raise InputError(
                f"log is a {type(log).__name__}; give a SummaryWriter, a run of Weights & Biases "
                "or a function log(metrics, epoch)"
            )
        self.log = log

    def __call__(self, model: nn.Module, epoch: int) -> Metrics | None:
        """Audit the model if ``every`` divides the epoch; return the numbers, or None."""
        if epoch % self.every:
            return None
        options = {"baseline": None, "examples": False, **self.options}
        self.record = audit(model, self.data, **options)
        metrics = self.history[epoch] = _metrics(self.record)
        self._send(metrics, epoch)
        return metrics

    def _send(self, metrics: Metrics, epoch: int) -> None:
        if hasattr(self.log, "add_scalar"):
            for name, value in metrics.items():
                self.log.add_scalar(name, value, epoch)
        elif hasattr(self.log, "log"):
            # Without a step: a run of Weights & Biases counts its own, which must not go back.
            self.log.log({**metrics, "epoch": epoch})
        elif self.log is not None:
            self.log(metrics, epoch)

    def lightning(self) -> Any:
        """Return a callback for ``lightning.pytorch.Trainer(callbacks=[...])``.

        It audits the ``LightningModule`` at the end of training epochs and logs with its
        ``log_dict``, so that the loggers of the trainer, ``EarlyStopping`` and checkpoints see the
        numbers.
        """
        require_extra("training", "a callback for Lightning", "lightning")
        from lightning.pytorch import Callback

        watch = self

        class AuditCallback(Callback):  # type: ignore[misc]
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                if trainer.is_global_zero:
                    metrics = watch(pl_module, trainer.current_epoch)
                    pl_module.log_dict(metrics or {}, rank_zero_only=True)

        return AuditCallback()

    def huggingface(self, trainer: Any) -> Any:
        """Return a callback for ``trainer.add_callback``, with a ``Trainer`` of transformers.

        It audits the model at the end of epochs, the first of which is epoch 0, and logs with
        ``trainer.log``, so that ``report_to`` and ``trainer.state.log_history`` have the numbers.
        """
        require_extra("training", "a callback for a Trainer", "transformers", "accelerate")
        from transformers import TrainerCallback

        watch = self

        class AuditCallback(TrainerCallback):  # type: ignore[misc]
            def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
                if state.is_world_process_zero:
                    metrics = watch(parts["model"], round(state.epoch) - 1)
                    if metrics is not None:
                        trainer.log(metrics)

        return AuditCallback()

    def __repr__(self) -> str:
        latest = max(self.history, default=None)
        if latest is None:
            return f"Watch(every={self.every}, no audits yet)"
        metrics = self.history[latest]
        counts = ", ".join(f"{metrics[f'audit/{name}']:.0f} {name}" for name in _FAULTS)
        audits = counted(len(self.history), "audit")
        return cut(f"Watch(every={self.every}, {audits}; epoch {latest}: {counts})", 200)

    def _repr_html_(self) -> str:
        """Return a row for each audit."""
        names = [f"audit/{name}" for name in (*_FAULTS, "accuracy")]
        rows = [(n, *map(metrics.get, names)) for n, metrics in self.history.items()]
        return table_html(repr(self), ("epoch", *_FAULTS, "accuracy"), rows)


def _metrics(record: AuditRecord) -> Metrics:
    """Return the counts of the network and of its layers by name, and the accuracy if known."""
    layers = {layer.name: count_faults(layer) for layer in record.layers}
    metrics = {f"audit/{name}": sum(own[name] for own in layers.values()) for name in _FAULTS}
    for name in _FAULTS:
        metrics |= {f"audit/{name}/{layer}": own[name] for layer, own in layers.items()}
    return metrics if record.accuracy is None else {**metrics, "audit/accuracy": record.accuracy}


def count_faults(layer: LayerRecord) -> Metrics:
    """Return how many units of a layer have each fault, by its name."""
    units, pairs = layer.units, layer.pairs
    rarest = max(units.rare, key=float, default=None)
    return {
        "dead": float(len(units.dead)),
        "rare": float(0 if rarest is None else len(units.rare[rarest])),
        "saturated": float(len(units.saturated)),
        "duplicate": float(len({j for _, j in pairs.duplicate}) if pairs else 0),
        "mirrored": float(len({j for _, j in pairs.mirrored}) if pairs else 0),
    }
