"""Features and logits of a model's samples, read without leaving a trace in the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mahalens.auditing.batches import Batch, DataBatches
from mahalens.auditing.runner import model_failure, untouched
from mahalens.auditing.trace import tensors_in
from mahalens.errors import InputError, MahalensError

BATCH = 256
"""Samples per batch where the data comes as tensors."""


BEFORE = "input of "
"""How the name of a feature begins that is what a layer is fed, not its output."""


class Reading(NamedTuple):
    """Features [n, D] of some samples at each layer, logits [n, L] and labels [n] if there are."""

    features: list[Tensor]
    logits: Tensor | None
    labels: Tensor | None


class Source:
    """A model as a source of features.

    Without ``layers`` the feature is what the last ``nn.Linear`` is fed, if its output is the
    model's output, which then is the logits; otherwise the flattened output of the model. A named
    layer gives its output: maps [n, C, H, W] are averaged over space, sequences [n, T, D] over the
    tokens that are not padding, by the batch's ``attention_mask``.

    Args:
        model: the model; it is left as it was, even after an error.
        layers: names of modules, as in ``model.named_modules()``.
    """

    def __init__(self, model: nn.Module, layers: list[str] | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"the model is a {type(model).__name__}; give an nn.Module")
        modules = dict(model.named_modules())
        for name in layers or ():
            if name not in modules:
                near = ", ".join(list(modules)[1:9])
                raise InputError(f"the model has no layer {name!r}; its layers begin with {near}")
        self.model = model
        self.layers = layers
        self.head: str | None = None
        """Name of the last linear layer, once it is known that it makes the output."""
        self._silent = False

    @property
    def linear(self) -> tuple[Tensor, Tensor] | None:
        """Weight [L, D] and bias [L] of the layer that makes logits from the features."""
        if self.head is None or self.layers is not None:
            return None
        layer = self.model.get_submodule(self.head)
        assert isinstance(layer, nn.Linear)
        weight = layer.weight.detach()
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return weight, bias

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers that features come from."""
        if self.layers is not None:
            return tuple(self.layers)
        return ("output",) if self.head is None else (f"{BEFORE}{self.head}",)

    def read(self, data: Any, *, labelled: bool = True) -> Iterator[Reading]:
        """Yield features, logits and labels, batch by batch.

        Warns once, in the first pass, if the data has labels that are not classes; later passes
        score, and need none. ``labelled=False`` ignores labels from the start.
        """
        batches = DataBatches(data, BATCH, labelled)
        notes = set(batches.notes)
        with untouched(self.model):
            try:
                for batch in batches:
                    if not self._silent and (faults := set(batches.notes) - notes):
                        self._silent = True
                        warnings.warn(
                            f"labels are ignored: {faults.pop()}; number the classes from 0 on, "
                            "or give the samples alone",
                            stacklevel=3,
                        )
                    yield self._read(batch)
                self._silent = True
            finally:
                batches.restore()

    def _read(self, batch: Batch) -> Reading:
        uses: dict[str, tuple[Tensor, Tensor]] = {}
        modules = dict(self.model.named_modules())
        names = {module: name for name, module in modules.items()}

        def see(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            first, last = (next(iter(tensors_in(v)), None) for v in (args, output))
            if last is not None:
                uses[names[module]] = (last if first is None else first, last)

        watched = {m for m in names if isinstance(m, nn.Linear)}
        watched |= {modules[name] for name in self.layers or ()}
        hooks = [module.register_forward_hook(see) for module in watched]
        args, kwargs = self._fitted((batch.args, batch.kwargs))
        try:
            output = next(iter(tensors_in(_logits_of(self.model(*args, **kwargs)))), None)
        except MahalensError:
            raise
        except Exception as error:
            raise model_failure((args, kwargs), error) from error
        finally:
            for hook in hooks:
                hook.remove()
        if output is None or output.ndim == 0 or len(output) != batch.size:
            raise InputError(
                f"the model's output for {batch.size} samples is not a tensor with {batch.size} "
                "rows; name a layer whose output is"
            )
        if output.ndim == 1:  # one number per sample, as many binary classifiers return it
            output = output[:, None]
        linear = {n: use for n, use in uses.items() if isinstance(modules[n], nn.Linear)}
        self.head = _head(linear, output)
        features = self._features(uses, output, batch.mask)
        return Reading(features, self._logits(output), batch.labels)

    def _features(
        self, uses: dict[str, tuple[Tensor, Tensor]], output: Tensor, mask: Tensor | None
    ) -> list[Tensor]:
        if self.layers is None:
            if self.head is None:
                return [output.flatten(1)]
            return [pooled(uses[self.head][0], mask)]
        missing = [name for name in self.layers if name not in uses]
        if missing:
            raise InputError(
                f"the layer {missing[0]!r} was not used for this data; name another one"
            )
        return [pooled(uses[name][1], mask) for name in self.layers]

    def _logits(self, output: Tensor) -> Tensor | None:
        return output if self.head is not None and output.ndim == 2 else None

    def _fitted(self, value: Any) -> Any:
        """Return inputs on the model's device, and floats in its precision."""
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if isinstance(value, Tensor) and weight is not None:
            return value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        if isinstance(value, tuple | list):
            return type(value)(self._fitted(part) for part in value)
        if isinstance(value, dict):
            return {key: self._fitted(part) for key, part in value.items()}
        return value


def _head(uses: dict[str, tuple[Tensor, Tensor]], output: Tensor) -> str | None:
    """Return the linear layer whose output is the model's."""
    for name, (_, result) in reversed(uses.items()):
        same = result is output or (result.shape == output.shape and torch.equal(result, output))
        if same:
            return name
    return None


def _logits_of(output: Any) -> Any:
    """Return the logits of an output that names them, as those of transformers do."""
    return getattr(output, "logits", output)


def pooled(z: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the output of a layer as features [n, D], averaged over space or sequence.

    Tokens of a sequence [n, T, D] count where ``mask`` [n, T] is True; a mask of another shape is
    not of these tokens, and all count.

    >>> pooled(torch.zeros(2, 3, 4, 4)).shape, pooled(torch.zeros(2, 7, 5)).shape
    (torch.Size([2, 3]), torch.Size([2, 5]))
    """
    if z.ndim == 3:
        if mask is None or mask.shape != z.shape[:2] or bool(mask.all()):
            return z.mean(1)
        tokens = mask.to(z.device)[:, :, None]
        z = z.to(torch.promote_types(z.dtype, torch.float32))  # a sum can be too large for half
        return z.where(tokens, 0).sum(1) / tokens.sum(1).clamp(min=1)
    return z.flatten(2).mean(2) if z.ndim > 3 else z.reshape(len(z), -1)
