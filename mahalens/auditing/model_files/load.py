"""Loading a model, and finding the shape in which it takes its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mahalens.auditing.model_files.factories import load_factory
from mahalens.auditing.model_files.loaded import LoadedModel, first_line, quiet
from mahalens.auditing.model_files.look import look_at
from mahalens.auditing.model_files.programs import load_program, load_script
from mahalens.errors import InputError

TRIED = 5
"""Samples in a trial: no usual number of channels, which a convolution would take them for."""
Shape = tuple[int, ...]


def load_model(
    spec: str,
    weights: Path | None = None,
    *,
    example: Tensor | None = None,
    trust: bool = False,
) -> LoadedModel:
    """Load a network to audit.

    ``spec`` is one of

    - ``package.module:factory``: a function or class in importable code of the user's that makes
      a ``torch.nn.Module``, with ``weights`` from a ``.safetensors`` file or a state dict;
    - a file of ``torch.export.save`` (``.pt2``);
    - a TorchScript file, which torch converts for an ``example`` [N, ...] of its input.

    The two kinds of file are programs, and loading one can run any code of whoever made it. They
    are loaded with ``trust=True`` only. Without it nothing in them is opened: names and first bytes
    are enough to refuse them. Everything else raises :class:`~mahalens.errors.InputError` with one
    line.

    >>> load_model("torch.nn:Identity").kind
    'factory'
    """
    kind = look_at(spec, weights, trust=trust)
    if kind == "factory":
        return load_factory(spec, weights)
    if kind == "TorchScript file":
        return load_script(Path(spec), example)
    return load_program(Path(spec))


def shapes_to_try(shape: Shape, image: Shape | None) -> list[Shape]:
    """The shapes in which a network may want samples of this shape, in the order to try.

    >>> shapes_to_try((784,), (28, 28))
    [(784,), (1, 28, 28), (28, 28)]
    >>> shapes_to_try((3, 32, 32), (3, 32, 32))
    [(3, 32, 32), (3072,)]
    """
    shapes = [shape]
    if image is not None:
        shapes += [(1, *image), image] if len(image) == 2 else [image]
    if len(shape) > 1 and (image is not None or 1 in shape):
        shapes.append((math.prod(shape),))
    return list(dict.fromkeys(shapes))


def load_fitting(
    spec: str,
    weights: Path | None,
    x: Tensor,
    shapes: Sequence[Shape],
    *,
    trust: bool = False,
) -> tuple[LoadedModel, Shape]:
    """Load a network, and find the first of the shapes in which it takes the samples x [N, ...].

    Each is tried with a few samples; nothing is changed by that but what a network may itself
    keep from call to call.
    """
    failures: dict[str, list[str]] = {}
    script = look_at(spec, weights, trust=trust) == "TorchScript file"
    loaded = None if script else load_model(spec, weights, trust=trust)
    for shape in shapes:
        some = _some(x, TRIED).reshape(-1, *shape)
        try:
            if loaded is None:
                found = load_model(spec, weights, example=some, trust=trust)
            else:
                found = _expecting(loaded, shape)
            _try(found, x, shape)
        except _Unfit as error:
            failures.setdefault(str(error), []).append(str(list(shape)))
            continue
        except InputError as error:
            if loaded is not None or "fails on samples of shape" not in str(error):
                raise
            failures.setdefault(_within(str(error)), []).append(str(list(shape)))
            continue
        return found, shape
    tried = "; ".join(f"{' or '.join(told)}: {why}" for why, told in failures.items())
    raise InputError(
        f"{spec}: the model fails on the data ({tried}); give the shape of a sample that it takes "
        f"with --shape, or other data"
    )


class _Unfit(Exception):
    """The network does not take samples of a shape."""


def _expecting(loaded: LoadedModel, shape: Shape) -> LoadedModel:
    """Compare with what a program says of its input, which is clearer than how it fails."""
    wanted = loaded.input_shape
    if wanted is None:
        return loaded
    sample = wanted[1:]
    if len(sample) == len(shape) and all(
        size in (None, mine) for size, mine in zip(sample, shape, strict=True)
    ):
        return loaded
    told = ", ".join("any" if size is None else str(size) for size in wanted)
    if wanted == shape:
        raise _Unfit(
            f"the program takes [{told}], one sample at a time; export it with a batch axis"
        )
    raise _Unfit(f"the program takes [{told}], the batch first")


def _try(loaded: LoadedModel, x: Tensor, shape: Shape) -> None:
    count = loaded.batch_size or TRIED
    some = loaded.cast(_some(x, count).reshape(-1, *shape))
    try:
        with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = loaded.module(some)
    except (Exception, SystemExit) as error:  # whatever the network raises
        raise _Unfit(first_line(error)) from None
    lengths = {len(one) for one in _tensors(output) if one.ndim}
    if lengths and count not in lengths:
        raise _Unfit(f"{count} samples give outputs of length {min(lengths)}")


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in _tensors(part)]
    return []


def _some(x: Tensor, count: int) -> Tensor:
    """So many samples; where there are fewer, some of them again."""
    return x[torch.arange(count) % len(x)]


def _within(text: str) -> str:
    """The reason in brackets of a message."""
    return text.partition("(")[2].rpartition(")")[0] or text
