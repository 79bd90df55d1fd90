"""The slow, obvious twin of the audit: a copy of the model is run on one sample at a time.

With one sample at a time there is no question whose rows are whose, whatever layout a model
uses inside. Hooks see what modules say; ``Recorder`` wraps functions that are no modules.
"""

import contextlib
import copy
import random

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as hooks

from mahalens import data

LABELS = torch.tensor([0, 1, 2, 1, 0, 2, 2, 0, 1, 1, 0])
"""Classes of the eleven samples that models are read on, in batches of four."""


def vectors(width=4, count=11):
    """Samples [N, D] that differ by class."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(width))
    return x + LABELS[:count, None]


def draw_gaussian(dimensions, dtype=torch.float64):
    """A random Gaussian as the study draws them: largest eigenvalue 1, mean off the origin."""
    generator = torch.Generator().manual_seed(1000 * dimensions)
    return data.draw_gaussian(dimensions, generator).to(dtype)


def draw_layer(units, dimensions, dtype=torch.float64):
    """A random layer (weight [K, D], bias [K])."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(units, dimensions, generator=generator, dtype=dtype)
    return weight, torch.randn(units, generator=generator, dtype=dtype)


class Net(nn.Module):
    """A model of some parts, started from a seed, with a function ``follow(model, x)``."""

    def __init__(self, follow, seed=0, **parts):
        super().__init__()
        torch.manual_seed(seed)
        for name, make in parts.items():
            setattr(self, name, make())
        self.follow = follow

    def forward(self, *args):
        return self.follow(self, *args)


def linear(*sizes, **options):
    """A maker of a Linear, for :class:`Net`."""
    return lambda: nn.Linear(*sizes, **options)


def small(width=4, outputs=3, hidden=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def positive(rows):
    return rows > 1e-6


def rows_of_samples(model, samples, path, forward=None):
    """Outputs [P, K] of the module at ``path`` for each sample by itself, over all its uses.

    ``samples`` are arguments of the model with a batch of one.
    """
    twin = copy.deepcopy(model).eval()
    found = []

    def see(module, args, output):
        if not isinstance(module, nn.Linear):
            dims = len(module.kernel_size)
            output = output.movedim(-dims - 1, -1)
        found[-1].append(output.detach().reshape(-1, output.shape[-1]).double().clone())

    dict(twin.named_modules())[path].register_forward_hook(see)
    for arguments in samples:
        found.append([])
        with torch.no_grad():
            if isinstance(arguments, dict):
                twin(**arguments)
            elif forward is not None:
                forward(twin, *arguments)
            else:
                twin(*arguments)
    return [torch.cat(parts) for parts in found]


def one_by_one(*tensors):
    """Arguments of a model for each sample by itself."""
    return [tuple(t[i : i + 1] for t in tensors) for i in range(len(tensors[0]))]


def folded(rows, norm):
    """Rows after a batch norm that uses its running statistics."""
    scale = norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
    shift = norm.bias.detach().double() - norm.running_mean.double() * scale
    return [row * scale + shift for row in rows]


def assert_read(layer, rows, labels=None, active=None, length=None, rtol=2e-4, atol=2e-5):
    """What the audit says about a layer is what its rows say."""
    together = torch.cat(rows)
    units = layer.units

    def same(got, wanted):
        torch.testing.assert_close(got.double(), wanted, rtol=rtol, atol=atol, equal_nan=True)

    assert layer.rows == len(together)
    assert layer.units_count == together.shape[1]
    same(units.mean, together.mean(0))
    same(units.std, together.std(0, correction=0))
    same(units.least, together.amin(0))
    same(units.greatest, together.amax(0))
    if active is not None:
        same(units.active, active(together).double().mean(0))
    assert_prototypes(layer, rows, length, rtol, atol)
    if labels is None:
        return
    for label in labels.unique().tolist():
        own = torch.cat([row for row, of in zip(rows, labels.tolist(), strict=True) if of == label])
        same(units.class_mean[label], own.mean(0))
        same(units.class_std[label], own.std(0, correction=0))
        if active is not None:
            same(units.class_active[label], active(own).double().mean(0))


def assert_prototypes(layer, rows, length, rtol, atol):
    """Nearest and most active samples are those with the best of their rows."""
    found = layer.prototypes
    count = min(len(rows), found.near_sample.shape[1])
    length = layer.hyperplanes.length if length is None else length
    nearest = torch.stack([row.abs().amin(0) for row in rows]) / length
    got = found.near_distance.T[:count]
    torch.testing.assert_close(got, nearest.sort(0).values[:count], rtol=rtol, atol=atol)
    taken = found.near_sample.T[:count]
    assert all(len(set(unit.tolist())) == count for unit in taken.T), "a sample stands once"
    torch.testing.assert_close(nearest.gather(0, taken), got, rtol=rtol, atol=atol)
    if layer.activation in ("none", "relu", "leaky_relu", "softplus", "tanh", "sigmoid"):
        most = torch.stack([row.amax(0) for row in rows])
        taken = found.active_sample.T[:count]
        best = most.sort(0, descending=True).values[:count]
        torch.testing.assert_close(most.gather(0, taken), best, rtol=rtol, atol=atol)


def state_of(model):
    """Everything of a model that an audit must leave alone."""
    modules = list(model.modules())
    return {
        "values": {key: value.clone() for key, value in model.state_dict().items()},
        "objects": {key: id(value) for key, value in model.state_dict(keep_vars=True).items()},
        "modes": [module.training for module in modules],
        "hooks": [len(v) for m in modules for k, v in vars(m).items() if k.endswith("_hooks")],
        "grads": {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None},
        "frozen": [p.requires_grad for p in model.parameters()],
        "attributes": [sorted(vars(module)) for module in modules],
        "plain": [
            {k: v for k, v in vars(module).items() if isinstance(v, int | float | str)}
            for module in modules
        ],
    }


def global_state():
    """Random states and hooks that all models share."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    shared = {k: v for k, v in vars(hooks).items() if k.startswith("_global") and "hooks" in k}
    return {
        "torch": torch.random.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
        "hooks": {name: len(value) for name, value in shared.items() if hasattr(value, "__len__")},
        "grad": torch.is_grad_enabled(),
    }


@contextlib.contextmanager
def left_alone(*models):
    """Nothing of the models, of random states or of hooks changes within, value by value."""
    before, around = [state_of(model) for model in models], global_state()
    yield
    assert around == global_state()
    for state, model in zip(before, models, strict=True):
        after = state_of(model)
        for key in ("values", "grads"):
            old, new = state.pop(key), after.pop(key)
            assert old.keys() == new.keys()
            assert all(torch.equal(tensor, new[name]) for name, tensor in old.items())
        assert state == after
