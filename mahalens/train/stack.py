"""T trials of one architecture as one matrix of parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from mahalens._show import counted, cut, facts_html
from mahalens.errors import InputError
from mahalens.geometry._checks import tensor_of
from mahalens.init import initialise
from mahalens.nn import Chain
from mahalens.nn.layers import first_units
from mahalens.train.engines import LOSSES, TorchEngine
from mahalens.train.layers import parameter_count, parameter_shapes, parts


class Template:
    """The architecture of trials that differ in their trainable parameters and in nothing else.

    Takes any module. Buffers and frozen parameters are constants, equal in all trials. Layers that
    change their buffers while training, such as ``BatchNorm`` with running statistics, cannot be
    stacked. :func:`mahalens.train.stack` makes templates of modules that are not chains.
    """

    def __init__(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if part.training and getattr(part, "running_mean", None) is not None:
                raise InputError(
                    f"layer {name!r}: {type(part).__name__} keeps running statistics, which cannot "
                    "be stacked; use LayerNorm or GroupNorm, or call its .eval()"
                )
        self.module = copy.deepcopy(module)
        self.shapes = {
            name: tuple(tensor.shape)
            for name, tensor in module.named_parameters()
            if tensor.requires_grad
        }
        # Tied parameters have several names; only the first is stored.
        every = module.named_parameters(remove_duplicate=False)
        self.trained = {name for name, tensor in every if tensor.requires_grad}
        if not self.shapes:
            raise InputError(f"{type(module).__name__}: has no trainable parameters to stack")

    def __str__(self) -> str:
        return type(self.module).__name__

    @property
    def count(self) -> int:
        """The number of trainable parameters of one trial."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Pack stacked parameters by name into one row per trial, ``[T, P]``."""
        return torch.cat([tensors[n].reshape(len(tensors[n]), -1) for n in self.shapes], 1)

    def named(self, values: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters of all trials, each ``[T, *shape]``."""
        columns = values.split([math.prod(shape) for shape in self.shapes.values()], 1)
        return {
            name: column.unflatten(1, shape) if shape else column.squeeze(1)
            for (name, shape), column in zip(self.shapes.items(), columns, strict=True)
        }

    def output(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the output of one trial with these values ``[P]``."""
        named = {name: tensor[0] for name, tensor in self.named(values[None]).items()}
        result: Tensor = torch.func.functional_call(self.module, named, (x,))
        return result

    def outputs(self, values: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of all trials on shared samples, ``[T, N, ...]``."""
        batched = torch.func.vmap(self.output, in_dims=(0, None), randomness="different")
        every: Tensor = batched(values, x)
        return every

    def output_on(self, x: Tensor) -> Tensor:
        """Return the first trial's output on some samples, leaving no trace."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module = copy.deepcopy(self.module)
            result: Tensor = (module.to(x.dtype) if x.dtype.is_floating_point else module)(x)
        return result

    def build(
        self, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> nn.Module:
        """Return a new module with the parameters of the first trial."""
        return copy.deepcopy(self.module).to(device=device, dtype=dtype)


class TrialStack:
    """T trials of one architecture: a matrix ``values`` of shape ``[T, P]``, a row per trial.

    The architecture is a :class:`mahalens.nn.Chain`, or a :class:`Template` for any other module.
    ``trials[i]`` is trial i as a plain module, ``trials[i:j]`` a stack of copies of some;
    :func:`stack` goes the other way. A row holds the parameters of one layer after the other (for
    chains see ``mahalens.train.layers.Part``).

    ``index`` ``[T]`` tells which trials of a larger stack these are, if they are only some of it.

    >>> chain = Chain.parse("Linear(4), ReLU, Norm", inputs=2)
    >>> modules = [chain.build() for _ in range(3)]
    >>> trials = TrialStack.from_modules(chain, modules)
    >>> trials.values.shape
    torch.Size([3, 12])
    >>> torch.equal(trials[1][0].weight, modules[1][0].weight)
    True
    """

    def __init__(
        self, model: Chain | Template, values: Tensor, *, index: Tensor | None = None
    ) -> None:
        width = parameter_count(model) if isinstance(model, Chain) else model.count
        if values.ndim != 2 or values.shape[1] != width:
            raise InputError(
                f"parameters of shape {tuple(values.shape)} for {_named(model)}; give [T, {width}]"
            )
        self.model = model
        self.values = values
        self.index = index

    @classmethod
    def from_modules(cls, model: Chain | Template, modules: Sequence[nn.Module]) -> TrialStack:
        """Stack copies of modules built from ``model``."""
        if not modules:
            raise InputError("no modules to stack; give at least one")
        if isinstance(model, Chain):
            _check_layers(model, modules)
            states = [_parameters(module) for module in modules]
        else:
            states = [dict(module.named_parameters()) for module in modules]
        dtypes = {str(tensor.dtype) for state in states for tensor in state.values()}
        if len(dtypes) > 1:
            raise InputError(f"modules of {' and '.join(sorted(dtypes))}; make them equal")
        shapes = _shapes(model)
        if isinstance(model, Template):
            _check_alike(model, modules)
        else:
            _check_shapes(model, shapes, states)
        stacked = {n: torch.stack([s[n].detach() for s in states]) for n in shapes}
        return cls.from_tensors(model, stacked)

    @classmethod
    def from_tensors(cls, model: Chain | Template, tensors: Mapping[str, Tensor]) -> TrialStack:
        """Pack stacked parameters, named as in ``state_dict``; :meth:`tensors` goes back."""
        for name, shape in _shapes(model).items():
            got = tuple(tensors[name].shape) if name in tensors else None
            if got is None or got[1:] != shape:
                wanted = ", ".join(("T", *map(str, shape)))
                raise InputError(
                    f"stacked parameter {name!r} has shape {got}, but {_named(model)} "
                    f"wants ({wanted})"
                )
        if isinstance(model, Template):
            return cls(model, model.pack(tensors))
        packed = [part.packed(tensors) for part in parts(model)]
        if not packed:
            raise InputError(f"the chain {model} has no parameters to stack")
        return cls(model, torch.cat(packed, 1).contiguous())

    @classmethod
    def from_seeds(
        cls,
        make: Chain | Callable[[], nn.Module],
        seeds: Iterable[int],
        *,
        init: str | None = None,
        data: Any = None,
    ) -> TrialStack:
        """Build a trial per seed, each started as ``torch.manual_seed(seed)`` starts a module.

        With ``init``, a name such as ``"cluster_pca"``, each is then started on ``data`` by
        :func:`mahalens.init.initialise`. The random state of the process does not change.

        >>> chain = Chain.parse("Linear(4), ReLU, Linear(3)", inputs=2)
        >>> trials = TrialStack.from_seeds(chain, range(3))
        >>> _ = torch.manual_seed(2)
        >>> torch.equal(trials[2][0].weight, chain.build()[0].weight)
        True
        """
        build = make.build if isinstance(make, Chain) else make
        if init is None and data is not None:
            raise InputError("data is given, but no init that would use it; name one")
        modules = []
        with torch.random.fork_rng(devices=[]):
            for seed in seeds:
                torch.manual_seed(seed)
                module = build()
                if init is not None:
                    initialise(module, data, init)
                modules.append(module)
        return cls.from_modules(make, modules) if isinstance(make, Chain) else stack(modules)

    @property
    def chain(self) -> Chain:
        """The architecture, if it is a chain."""
        if not isinstance(self.model, Chain):
            raise InputError(f"{self.model} is not a chain of layers; see Chain.from_module")
        return self.model

    def __repr__(self) -> str:
        trials = counted(len(self), "trial")
        return f"TrialStack({trials} of {cut(self.model, 120)}, {self.values.dtype})"

    def _repr_html_(self) -> str:
        """Return the architecture and its sizes."""
        facts = {
            "trials": len(self),
            "architecture": str(self.model),
            "parameters of a trial": self.values.shape[1],
            "type": f"{self.values.dtype} on {self.values.device}",
        }
        return facts_html("TrialStack", facts)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, trial: int) -> nn.Module: ...
    @overload
    def __getitem__(self, trial: slice) -> TrialStack: ...
    def __getitem__(self, trial: int | slice) -> nn.Module | TrialStack:
        """Return trial ``trial`` as a new plain module, or copies of some trials as a new stack."""
        if isinstance(trial, slice):
            return TrialStack(self.model, self.values[trial].clone())
        state = {name: tensor[trial].clone() for name, tensor in self.tensors().items()}
        if isinstance(self.model, Template):
            module = self.model.build(dtype=self.values.dtype, device=self.values.device)
            module.load_state_dict(state, strict=False)
            return module
        # Built without numbers: drawing starting weights would advance the random state.
        module = self.model.build(dtype=self.values.dtype, device="meta")
        layers = zip(self.model.layers, self.model.widths, strict=True)
        for place, (layer, width) in enumerate(layers):
            if layer.absolute is not None:
                mask = first_units(layer.absolute, width)
                state[f"{place}.absolute"] = mask.to(self.values.device)
        module.load_state_dict(state, assign=True)
        return module

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs of all trials, without gradients: for metrics.

        Shapes: x ``[N, D]`` shared, or for a chain one per trial ``[T, N, D]``; returns
        ``[T, N, K]``, or ``[T, N]`` with a ``Norm``.

        >>> chain = Chain.parse("Linear(4), ReLU, Linear(3)", inputs=2)
        >>> TrialStack.from_seeds(chain, range(5))(torch.zeros(7, 2)).shape
        torch.Size([5, 7, 3])
        """
        if isinstance(self.model, Template):
            return self.model.outputs(self.values, x)
        width, x = self.model.inputs, tensor_of("x", x, self.values)
        per_trial = x.ndim == 3 and len(x) == len(self)
        if x.ndim != 2 + per_trial or x.shape[-1] != width or not x.shape[-2]:
            raise InputError(
                f"x of shape {list(x.shape)} for the chain {self.model}; give [N, {width}], or "
                f"[{len(self)}, N, {width}]"
            )
        samples = x if per_trial else x.unsqueeze(0)
        # Outputs need no targets, and any loss will do.
        engine = TorchEngine(self.model, LOSSES["mse"], samples, samples[..., :0])
        output = engine.outputs(self.values, torch.arange(len(self)))
        return output.squeeze(-1) if self.model.scalar else output

    def parts(self) -> list[Tensor]:
        """Return views ``[T, ...]`` of the parameters of each layer of a chain that has any."""
        return [part.view(self.values) for part in parts(self.chain)]

    def tensors(self) -> dict[str, Tensor]:
        """Return views of the stacked parameters under their ``state_dict`` names."""
        if isinstance(self.model, Template):
            return self.model.named(self.values)
        return {
            name: tensor
            for part in parts(self.model)
            for name, tensor in part.named(self.values).items()
        }


def stack(modules: Sequence[nn.Module]) -> TrialStack:
    """Stack modules of one architecture; ``stack(modules)[i]`` is module i again.

    A plain ``nn.Sequential`` of the layers a :class:`mahalens.nn.Chain` knows trains by the fast
    engines; any other module is stacked too, and trains through ``torch.func``.

    >>> trials = stack([nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in "abc"])
    >>> trials
    TrialStack(3 trials of Linear(4), Tanh, Linear(1), torch.float32)
    """
    argument: object = modules
    if isinstance(argument, nn.Module) and not isinstance(argument, nn.ModuleList):
        raise InputError(f"one {type(argument).__name__}; give a list of modules, one per trial")
    if not modules:
        raise InputError("no modules to stack; give at least one")
    for trial, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise InputError(f"trial {trial}: {type(module).__name__} is not an nn.Module")
    model: Chain | Template
    try:
        model = Chain.from_module(modules[0])
    except InputError:
        model = Template(modules[0])
    return TrialStack.from_modules(model, modules)


def _named(model: Chain | Template) -> str:
    return f"the {'chain' if isinstance(model, Chain) else 'module'} {model}"


def _shapes(model: Chain | Template) -> dict[str, tuple[int, ...]]:
    return model.shapes if isinstance(model, Template) else parameter_shapes(model)


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; the layers of a ``Sequential`` go by place, whatever their names."""
    if not isinstance(module, nn.Sequential):
        return dict(module.named_parameters())
    return {
        f"{place}.{name}": tensor
        for place, part in enumerate(module)
        for name, tensor in part.named_parameters()
    }


def _check_layers(chain: Chain, modules: Sequence[nn.Module]) -> None:
    """Refuse modules of other layers, which may have parameters of the same shapes."""

    def kinds(module: nn.Sequential) -> list[tuple[str, str]]:
        return [(type(part).__name__, getattr(part, "variant", "")) for part in module]

    def settings(chain: Chain) -> list[tuple[int | None, float]]:
        return [(layer.absolute, layer.slope) for layer in chain.layers]

    wanted = kinds(chain.build(device="meta"))
    for trial, module in enumerate(modules):
        if not isinstance(module, nn.Sequential):
            continue
        description = ", ".join(kind for kind, _ in kinds(module))
        if kinds(module) == wanted:
            try:
                read = Chain.from_module(module)
            except InputError as error:
                raise InputError(f"trial {trial}: {error}") from None
            if settings(read) == settings(chain):
                continue
            description = str(read)
        raise InputError(
            f"trial {trial}: a module of {description} for the chain {chain}; "
            "stack modules of one architecture"
        )


def _check_shapes(
    chain: Chain, shapes: dict[str, tuple[int, ...]], states: list[dict[str, Tensor]]
) -> None:
    for trial, state in enumerate(states):
        for name in {**shapes, **state}:
            got = tuple(state[name].shape) if name in state else None
            if got != shapes.get(name):
                raise InputError(
                    f"trial {trial}: parameter {name!r} has shape {got}, "
                    f"but the chain {chain} wants {shapes.get(name)}"
                )


def _check_alike(template: Template, modules: Sequence[nn.Module]) -> None:
    """Refuse modules that differ from the first in more than their trainable parameters."""
    wanted = template.module.state_dict()
    kinds = [type(part) for part in template.module.modules()]
    modes = [part.training for part in template.module.modules()]
    for trial, module in enumerate(modules):
        if [type(part) for part in module.modules()] != kinds:
            raise InputError(
                f"trial {trial}: is not built of the same layers as trial 0; stack modules of "
                "one architecture"
            )
        state = module.state_dict()
        for name in {**wanted, **state}:
            got = tuple(state[name].shape) if name in state else None
            want = tuple(wanted[name].shape) if name in wanted else None
            if got != want:
                raise InputError(
                    f"trial {trial}: {name!r} has shape {got}, but trial 0 has {want}; "
                    "stack modules of one architecture"
                )
            if name not in template.trained and not _same(state[name], wanted[name]):
                raise InputError(
                    f"trial {trial}: the constant {name!r} differs from that of trial 0; only "
                    "trainable parameters may differ"
                )
        trainable = {n: tuple(t.shape) for n, t in module.named_parameters() if t.requires_grad}
        if trainable != template.shapes:
            raise InputError(f"trial {trial}: trains other parameters than trial 0")
        # The text of a layer holds its slopes, rates and sizes, but not its mode.
        if str(module) != str(template.module) or [p.training for p in module.modules()] != modes:
            raise InputError(
                f"trial {trial}: has layers with other settings than trial 0; stack modules of one "
                "architecture, all in .train() or all in .eval()"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two constants are equal; NaN, as for settings still to be made, equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
