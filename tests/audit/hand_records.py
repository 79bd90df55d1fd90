"""Small models with planted units, and records of them made the slow and obvious way."""

import torch
from records import bare_layer, changed, unit_reading, where
from torch import nn

from mahalens.auditing.pairs import PairReading
from mahalens.auditing.readings import HyperplaneReading
from mahalens.auditing.record import AuditRecord, DataFacts, Settings

ACTIVATIONS = {
    "relu": torch.relu,
    "abs": torch.abs,
    "none": lambda z: z,
    "tanh": torch.tanh,
    "leaky_relu": nn.functional.leaky_relu,
    "gelu": nn.functional.gelu,
}


def hand_record(model, x, layers, **settings):
    """The record of ``layers``, dictionaries with ``name``, ``activation``, ``feeds``, ``norm``."""
    return AuditRecord(
        mahalens="0",
        torch="0",
        model=type(model).__name__,
        settings=Settings(**settings),
        data=DataFacts(samples=len(x), shape=tuple(x.shape[1:])),
        layers=tuple(
            hand_layer(model, x, Settings(**settings).tolerance, **layer) for layer in layers
        ),
        verdict="",
    )


def hand_layer(model, x, tolerance, name, norm=None, near=1e-5, activation="relu", **more):
    last = isinstance(model.get_submodule(name), nn.Linear)
    active = ACTIVATIONS[activation](outputs_of(model, norm or name, x, last))
    weight, bias = rows_of(model, name, norm)
    nothing = torch.zeros(len(weight))
    return bare_layer(
        name,
        unit_reading(len(weight), dead=where((active.abs() <= tolerance).all(0))),
        inputs=weight.shape[1],
        activation=activation,
        folded="BatchNorm" if norm else None,
        hyperplanes=HyperplaneReading(
            length=weight.norm(dim=1),
            mean_distance=nothing,
            mean_spreads=nothing,
            through=nothing > 0,
            chance=nothing,
            positive=nothing,
        ),
        pairs=pairs_of(weight, bias, near),
        **more,
    )


def outputs_of(model, name, x, last):
    """Rows [R, K] that a module gives; ``last`` is whether its units are along the last axis."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(
        lambda module, args, output: seen.append(output.detach())
    )
    was = model.training
    with torch.no_grad():
        model.eval()(x)
    model.train(was)
    handle.remove()
    return torch.cat([(out if last else out.movedim(1, -1)).flatten(0, -2) for out in seen])


def with_pairs(record, layer, **pairs):
    """The record with other pairs in one layer, such as ``mirrored=((0, 1),)``."""
    return changed(record, layer, **{f"pairs__{kind}": units for kind, units in pairs.items()})


def rows_of(model, name, norm=None):
    module = model.get_submodule(name)
    weight = module.weight.detach().double().flatten(1)
    bias = weight.new_zeros(len(weight))
    if module.bias is not None:
        bias = module.bias.detach().double()
    if norm:
        fold = model.get_submodule(norm)
        scale = fold.weight.detach().double() / (fold.running_var.double() + fold.eps).sqrt()
        bias = (bias - fold.running_mean.double()) * scale + fold.bias.detach().double()
        weight = weight * scale[:, None]
    return weight, bias


def pairs_of(weight, bias, near):
    """Duplicates by direction and hyperplane; mirrored ones by direction alone, each once."""
    length = weight.norm(dim=1)
    unit, offset = weight / length[:, None], bias / length
    mirrored, duplicate, used = [], [], set()
    for i in range(len(weight)):
        for j in range(i + 1, len(weight)):
            cosine = float(unit[i] @ unit[j])
            if cosine > 1 - near and abs(offset[i] - offset[j]) < near:
                duplicate.append((i, j))
            elif cosine < -1 + near and not {i, j} & used:
                used |= {i, j}
                mirrored.append((i, j))
    lost = {j for _, j in mirrored + duplicate}
    return PairReading(
        mirrored=tuple(mirrored),
        duplicate=tuple(duplicate),
        parallel=(),
        kept=tuple(i for i in range(len(weight)) if i not in lost),
    )


def draw(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def fill(model, seed=0):
    """Numbers of a fixed draw in all parameters and buffers of batch norms."""
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=seed + index) / 3)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(draw(module.num_features, seed=7) / 5)
                module.running_var.copy_(draw(module.num_features, seed=8).square() + 0.5)
    return model.eval()


def plant(layer, reader=None, *, dead=(), copies=(), mirrors=(), equal_reads=True):
    """Make units dead, ``copies`` (i, j, a) and ``mirrors`` (i, j, a) of unit i."""
    with torch.no_grad():
        for unit in dead:
            layer.bias[unit] = -1000.0
        for i, j, factor in (*copies, *((i, j, -a) for i, j, a in mirrors)):
            for part in (layer.weight, *([] if layer.bias is None else [layer.bias])):
                part[j] = factor * part[i]
        units = layer.weight.shape[0]
        for i, j, factor in mirrors if equal_reads else ():
            reads = reader.weight.view(len(reader.weight), units, -1)
            reads[:, j] = reads[:, i] / factor


def centre(model, name, x):
    """Put every hyperplane of a layer into the middle of its inputs, so that none is dead."""
    layer = model.get_submodule(name)
    with torch.no_grad():
        rows = outputs_of(model, name, x, isinstance(layer, nn.Linear))
        layer.bias -= rows.median(0).values


def mlp(dtype=torch.float32, activation=None):
    model = nn.Sequential(
        nn.Linear(6, 10), activation or nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    return fill(model).to(dtype)


MLP = (
    {"name": "0", "feeds": "2"},
    {"name": "2", "feeds": "4"},
    {"name": "4", "activation": "none"},
)


def same_outputs(smaller, model, x, eps=None):
    with torch.no_grad():
        wanted, got = model(x), smaller(x)
    eps = eps or 50 * torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(got, wanted, rtol=eps, atol=eps * float(wanted.abs().max()))


def done(smaller):
    return {(step.layer, step.action): step.units for step in smaller.pruned.done}


def left(smaller):
    return {(rest.layer, rest.action): rest.reason for rest in smaller.pruned.left}
