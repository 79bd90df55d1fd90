"""T trials of one architecture as one matrix of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.init.model import initialise
from mahalens.nn.chain import Chain
from mahalens.nn.mixed import first_units
from mahalens.train.layout import parameter_count, parameter_shapes, parts
from mahalens.train.losses import SquaredError
from mahalens.train.passes import TorchEngine
from mahalens.train.template import Template, check_alike


class TrialStack:
    """T trials of one architecture: a matrix ``values`` of shape ``[T, P]``, a row per trial.

    The architecture is a :class:`mahalens.nn.Chain`, or a :class:`Template` for any other module.
    ``trials[i]`` is trial i as a plain module; :func:`stack` goes the other way. How a row is
    divided among the layers is told by :mod:`mahalens.train.layout`.

    ``index`` ``[T]`` says which trials these are where they are only some of a larger stack.

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
                f"parameters of shape {tuple(values.shape)} for {_called(model)}; give [T, {width}]"
            )
        self.model = model
        self.values = values
        self.index = index

    @classmethod
    def from_modules(cls, model: Chain | Template, modules: Sequence[nn.Module]) -> TrialStack:
        """Stack modules built from ``model``; they are copied."""
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
        names = _shapes(model)
        if isinstance(model, Template):
            check_alike(model, modules)
        else:
            for trial, state in enumerate(states):
                for name in {**names, **state}:
                    got = tuple(state[name].shape) if name in state else None
                    if got != names.get(name):
                        raise InputError(
                            f"trial {trial}: parameter {name!r} has shape {got}, "
                            f"but the chain {model} wants {names.get(name)}"
                        )
        stacked = {n: torch.stack([s[n].detach() for s in states]) for n in names}
        return cls.from_tensors(model, stacked)

    @classmethod
    def from_tensors(cls, model: Chain | Template, tensors: Mapping[str, Tensor]) -> TrialStack:
        """Pack stacked parameters, named as in ``state_dict``; :meth:`tensors` goes back."""
        for name, shape in _shapes(model).items():
            got = tuple(tensors[name].shape) if name in tensors else None
            if got is None or got[1:] != shape:
                wanted = ", ".join(("T", *map(str, shape)))
                raise InputError(
                    f"stacked parameter {name!r} has shape {got}, but {_called(model)} "
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
        """A trial per seed, each started as ``torch.manual_seed(seed)`` starts a module alone.

        With ``init``, a name such as ``"cluster_pca"``, each is then started on ``data`` by
        :func:`mahalens.init.initialise`. The random state of the process is left as it was.

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
        """The architecture, where it is a chain."""
        if not isinstance(self.model, Chain):
            raise InputError(f"{self.model} is not a chain of layers; see Chain.from_module")
        return self.model

    def __repr__(self) -> str:
        return f"TrialStack({len(self)} trials of {self.model}, {self.values.dtype})"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, trial: int) -> nn.Module:
        """Trial ``trial`` as a plain module of its own."""
        own = {name: tensor[trial].clone() for name, tensor in self.tensors().items()}
        if isinstance(self.model, Template):
            module = self.model.build(dtype=self.values.dtype, device=self.values.device)
            module.load_state_dict(own, strict=False)
            return module
        # Built without numbers: drawing starting weights would move the random state.
        module = self.model.build(dtype=self.values.dtype, device="meta")
        layers = zip(self.model.layers, self.model.widths, strict=True)
        for place, (layer, width) in enumerate(layers):
            if layer.absolute is not None:
                mask = first_units(layer.absolute, width)
                own[f"{place}.absolute"] = mask.to(self.values.device)
        module.load_state_dict(own, assign=True)
        return module

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Outputs of all trials, as each would give alone: for metrics, without gradients.

        Shapes: x ``[N, D]`` shared, or for a chain one per trial ``[T, N, D]``; returns
        ``[T, N, K]``, or ``[T, N]`` with a ``Norm``.

        >>> chain = Chain.parse("Linear(4), ReLU, Linear(3)", inputs=2)
        >>> TrialStack.from_seeds(chain, range(5))(torch.zeros(7, 2)).shape
        torch.Size([5, 7, 3])
        """
        if isinstance(self.model, Template):
            return self.model.outputs(self.values, x)
        width = self.model.inputs
        own = x.ndim == 3 and len(x) == len(self)
        if x.ndim != 2 + own or x.shape[-1] != width or not x.shape[-2]:
            raise InputError(
                f"x of shape {list(x.shape)} for the chain {self.model}; give [N, {width}], or "
                f"[{len(self)}, N, {width}]"
            )
        shared = x if own else x.unsqueeze(0)
        # Only outputs are asked for, so that there are no targets and any loss will do.
        engine = TorchEngine(self.model, SquaredError(), shared, shared[..., :0])
        output = engine.outputs(self.values, torch.arange(len(self)))
        return output.squeeze(-1) if self.model.scalar else output

    def parts(self) -> list[Tensor]:
        """Views of the parameters of each layer that has any; see :mod:`mahalens.train.layout`."""
        return [part.view(self.values) for part in parts(self.chain)]

    def tensors(self) -> dict[str, Tensor]:
        """Views of the stacked parameters under their ``state_dict`` names."""
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
    given: object = modules
    if isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList):
        raise InputError(f"one {type(given).__name__}; give a list of modules, one per trial")
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


def _parameters(module: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; the layers of a ``Sequential`` go by place, whatever their names."""
    if not isinstance(module, nn.Sequential):
        return dict(module.named_parameters())
    return {
        f"{place}.{name}": tensor
        for place, part in enumerate(module)
        for name, tensor in part.named_parameters()
    }


def _called(model: Chain | Template) -> str:
    return f"the {'chain' if isinstance(model, Chain) else 'module'} {model}"


def _shapes(model: Chain | Template) -> dict[str, tuple[int, ...]]:
    return model.shapes if isinstance(model, Template) else parameter_shapes(model)


def _check_layers(chain: Chain, modules: Sequence[nn.Module]) -> None:
    """A module of other layers may have parameters of the same shapes."""

    def kinds(module: nn.Sequential) -> list[tuple[str, str]]:
        return [(type(part).__name__, getattr(part, "variant", "")) for part in module]

    wanted = kinds(chain.build(device="meta"))
    marked = [(layer.absolute, layer.slope) for layer in chain.layers]
    for trial, module in enumerate(modules):
        if not isinstance(module, nn.Sequential):
            continue
        if kinds(module) == wanted:
            try:
                read = Chain.from_module(module)
            except InputError as error:
                raise InputError(f"trial {trial}: {error}") from None
            if [(layer.absolute, layer.slope) for layer in read.layers] != marked:
                raise InputError(
                    f"trial {trial}: a module of {read} for the chain {chain}; "
                    "stack modules of one architecture"
                )
        else:
            got = ", ".join(kind for kind, _ in kinds(module))
            raise InputError(
                f"trial {trial}: a module of {got} for the chain {chain}; "
                "stack modules of one architecture"
            )
