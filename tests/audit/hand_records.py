"""Small models with planted units, and records of them made the slow and obvious way."""

import msgspec
import torch
from records import units_of
from torch import nn

from mahalens.auditing.pairs import PairReading
from mahalens.auditing.readings import HyperplaneReading
from mahalens.auditing.record import AuditRecord, DataFacts, LayerRecord, Settings
from mahalens.auditing.verdict import Verdict

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


def hand_layer(
    model, x, tolerance, name, activation="relu", feeds=None, norm=None, calls=1, near=1e-5
):
    module = model.get_submodule(name)
    seen = []
    handle = model.get_submodule(norm or name).register_forward_hook(
        lambda module, args, output: seen.append(output.detach())
    )
    was = model.training
    model.eval()
    with torch.no_grad():
        model(x)
    model.train(was)
    handle.remove()
    units = module.weight.shape[0]
    last = isinstance(module, nn.Linear)
    z = torch.cat([(out if last else out.movedim(1, -1)).reshape(-1, units) for out in seen])
    active = ACTIVATIONS[activation](z)
    weight, bias = rows_of(model, name, norm)
    reading = units_of(z.float(), active.float(), [], 1)
    dead = tuple((active.abs() <= tolerance).all(0).nonzero().flatten().tolist())
    nothing = torch.zeros(units)
    return LayerRecord(
        name=name,
        kind=type(module).__name__,
        units_count=units,
        inputs=weight.shape[1],
        activation=activation,
        folded="BatchNorm" if norm else None,
        calls=calls,
        positions=1,
        rows=len(z),
        feeds=feeds,
        units=type(reading)(
            **{
                **{field: getattr(reading, field) for field in reading.__struct_fields__},
                "dead": dead,
            }
        ),
        hyperplanes=HyperplaneReading(
            length=weight.norm(dim=1),
            mean_distance=nothing,
            mean_spreads=nothing,
            through=nothing > 0,
            chance=nothing,
            positive=nothing,
        ),
        pairs=pairs_of(weight, bias, near),
        verdict=Verdict(word="mixed", score=None, share=None, chance=None, reason=""),
    )


def with_pairs(record, layer, **pairs):
    """The record with other pairs in one layer, such as ``mirrored=((0, 1),)``."""
    layers = list(record.layers)
    told = msgspec.structs.replace(layers[layer].pairs, **pairs)
    layers[layer] = msgspec.structs.replace(layers[layer], pairs=told)
    return msgspec.structs.replace(record, layers=tuple(layers))


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
            layer.weight[j] = factor * layer.weight[i]
            layer.bias[j] = factor * layer.bias[i]
        units = layer.weight.shape[0]
        for i, j, factor in mirrors if equal_reads else ():
            reads = reader.weight.view(len(reader.weight), units, -1)
            reads[:, j] = reads[:, i] / factor


def centre(model, name, x):
    """Put every hyperplane of a layer into the middle of its inputs, so that none is dead."""
    layer = model.get_submodule(name)
    seen = []
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(x)
        units = -1 if isinstance(layer, nn.Linear) else 1
        layer.bias -= seen[0].movedim(units, 0).flatten(1).median(1).values
    handle.remove()


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
