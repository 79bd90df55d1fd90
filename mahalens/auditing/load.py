"""Load a network to audit: the user's code with weights from a file, or a program that is trusted.

=======================  ==================================================================
:func:`load_model`       a network from ``package.module:factory``, a ``.pt2`` file or TorchScript
:func:`load_fitting`     the same, with the shape in which it takes some samples
:func:`shapes_to_try`    the shapes in which a network may want samples
:class:`LoadedModel`     the module, and what is known of its input
=======================  ==================================================================

A factory is the user's code and is run. Files of weights are read without running anything in
them. ``.pt2`` and TorchScript files are programs and need ``trust=True``; without
it they are refused by their names and first bytes. SECURITY.md has the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import inspect
import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from mahalens.auditing.recognise import (
    EXPORT,
    WEIGHTS_WANTED,
    factory_parts,
    first_bytes,
    is_archive,
    is_safetensors,
    recognise_model,
    require_weights_only,
)
from mahalens.auditing.trace import tensors_in
from mahalens.errors import InputError

Shape = tuple[int, ...]

TRIED = 5
"""Samples in a trial: no usual number of channels, which a convolution would take them for."""
QUANTISED = (
    "holds a quantised network, whose packed weights cannot be read as hyperplanes; give the "
    "float network it was made from"
)
_ADVICE = f"export the model instead, where its Python code is: {EXPORT}"
_NO_WEIGHTS = "no --weights: the weights are as {} makes them"
_NESTED = ("state_dict", "model_state_dict", "model", "ema", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.")  # DataParallel, torch.compile, Lightning
_LISTED = 3  # names in a message
_LONGEST = 200  # characters of another error that a message repeats


@dataclass(frozen=True)
class LoadedModel:
    """A network from a file or a factory, in evaluation mode, and what is known of its input."""

    module: nn.Module
    name: str
    kind: str
    """``torch.export program``, ``TorchScript file`` or ``factory``."""
    batch_size: int | None = None
    """The only number of samples that it takes at once; None where any will do."""
    dtype: torch.dtype | None = None
    """The type of number that its input has to have, where it is known."""
    input_shape: tuple[int | None, ...] | None = None
    """The shape of its input with the batch axis, None for sizes that are free."""
    notes: tuple[str, ...] = ()
    """What a reader of the audit should know about how it was loaded."""

    def cast(self, x: Tensor) -> Tensor:
        """Return the samples in the type of number that the model computes with.

        Whole numbers, such as those of tokens, stay whole where the model takes them.
        """
        if self.dtype is None or x.dtype == self.dtype:
            return x
        if x.is_floating_point() and not self.dtype.is_floating_point:
            wanted, dtype = (str(d).removeprefix("torch.") for d in (self.dtype, x.dtype))
            raise InputError(
                f"the model takes whole numbers ({wanted}) and x is {dtype}; give x of that kind"
            )
        return x.to(self.dtype)

    def whole_batches(self, samples: int) -> int:
        """Return how many of so many samples fill whole batches, where their size is fixed.

        >>> LoadedModel(nn.Identity(), "net", "factory", batch_size=32).whole_batches(100)
        96
        """
        if self.batch_size is None:
            return samples
        whole = samples - samples % self.batch_size
        if not whole:
            raise InputError(
                f"the model takes batches of exactly {self.batch_size} and there are {samples} "
                f"samples; give more, or export it with a free batch size"
            )
        return whole


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
    kind = recognise_model(spec, weights, trust=trust)
    if kind == "factory":
        return _load_factory(spec, weights)
    if kind == "TorchScript file":
        return _load_script(Path(spec), example)
    return _load_program(Path(spec))


def shapes_to_try(shape: Shape, image: Shape | None) -> list[Shape]:
    """Return the shapes in which a network may want samples of this shape, in the order to try.

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

    Each is tried with a few samples; that changes nothing but what a network itself keeps from
    call to call.
    """
    failures: dict[str, list[str]] = {}
    script = recognise_model(spec, weights, trust=trust) == "TorchScript file"
    model = None if script else load_model(spec, weights, trust=trust)
    for shape in shapes:
        try:
            example = _repeated(x, TRIED).reshape(-1, *shape)
            loaded = model or load_model(spec, weights, example=example, trust=trust)
            _check_input_shape(loaded.input_shape, shape)
            _try(loaded, x, shape)
        except UnfitShapeError as error:
            failures.setdefault(error.reason, []).append(str(list(shape)))
        else:
            return loaded, shape
    tried = "; ".join(f"{' or '.join(names)}: {reason}" for reason, names in failures.items())
    raise InputError(
        f"{spec}: the model fails on the data ({tried}); give the shape of a sample that it takes "
        f"with --shape, or other data"
    )


class UnfitShapeError(InputError):
    """A network that does not take samples of a shape, and the reason in a few words."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


def _check_input_shape(wanted: tuple[int | None, ...] | None, shape: Shape) -> None:
    """Compare with what a program says of its input, which is clearer than how it fails."""
    if wanted is None:
        return
    sample = wanted[1:]
    if len(sample) == len(shape) and all(
        map(lambda size, mine: size in (None, mine), sample, shape)
    ):
        return
    text = ", ".join("any" if size is None else str(size) for size in wanted)
    advice = "one sample at a time; export it with a batch axis"
    raise UnfitShapeError(
        f"the program takes [{text}], {advice if wanted == shape else 'the batch first'}"
    )


def _try(loaded: LoadedModel, x: Tensor, shape: Shape) -> None:
    count = loaded.batch_size or TRIED
    batch = loaded.cast(_repeated(x, count).reshape(-1, *shape))
    try:
        with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = loaded.module(batch)
    except (Exception, SystemExit) as error:  # whatever the network raises
        raise UnfitShapeError(first_line(error)) from None
    lengths = {len(tensor) for tensor in tensors_in(output) if tensor.ndim}
    if lengths and count not in lengths:
        raise UnfitShapeError(f"{count} samples give outputs of length {min(lengths)}")


def _repeated(x: Tensor, count: int) -> Tensor:
    """Return so many samples; where there are fewer, some of them again."""
    return x[torch.arange(count) % len(x)]


# --- Factories: code on the user's machine ------------------------------------------------------


class FolderFinder(importlib.abc.MetaPathFinder):
    """A finder of the module that a user named in a folder, and for that module those beside it.

    A folder on ``sys.path`` would serve everybody: torch looks for optional modules such as z3,
    and would run a ``z3.py`` that lies beside a model. This finder comes after all others, so that
    nothing installed is replaced, and answers only for the named module and for import statements
    in modules that it found itself.
    """

    def __init__(self, folder: str, module: str) -> None:
        self.folder, self.names = folder, {module.partition(".")[0]}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Look in the folder, if the module is named or one from there asks."""
        if path is not None:  # a submodule, which its package's path finds
            return None
        if fullname not in self.names and _importer(sys._getframe(1)) not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self.folder])
        if spec is not None:
            self.names.add(fullname)
        return spec


def _importer(frame: FrameType | None) -> str:
    """Return the top package of the code that runs an import statement."""
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return top
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def importing_from_here(spec: str) -> Iterator[None]:
    """Find the module of a factory in the current folder within, if ``spec`` names a factory."""
    parts = factory_parts(spec)
    if parts is None:
        yield
        return
    finder = FolderFinder(os.getcwd(), parts[0])
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def without_hard_exit() -> Iterator[None]:
    """Turn ``os._exit`` into SystemExit within, so that code of a user cannot end it in silence."""
    before, process = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that ends as it should
            before(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = before


def _load_factory(spec: str, weights: Path | None) -> LoadedModel:
    module = _make_network(spec)
    if _is_quantised(module):
        raise InputError(f"{spec}: {QUANTISED}")
    if weights is not None:
        load_weights(module, weights)
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    # Where whole numbers go in first, the type of the input is not that of the weights.
    whole = any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in module.modules())
    return LoadedModel(
        module=module.eval(),
        name=spec,
        kind="factory",
        dtype=None if whole or len(dtypes) != 1 else dtypes.pop(),
        notes=() if weights is not None else (_NO_WEIGHTS.format(spec),),
    )


def _make_network(spec: str) -> nn.Module:
    name, _, path = spec.partition(":")
    factory: object = _import_module(spec, name)
    for part in path.split("."):
        if not hasattr(factory, part):
            where = f" in {file}" if (file := getattr(factory, "__file__", None)) else ""
            raise InputError(f"{spec}: there is no {part!r}{where}; wanted a function or a class")
        factory = getattr(factory, part)
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise InputError(
            f"{spec}: is a {type(factory).__name__}; wanted a function or a class that makes a "
            f"torch.nn.Module"
        )
    try:
        with without_hard_exit():
            network = factory()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{spec}: failed, {_describe(error)}; it is called without arguments"
        ) from None
    if not isinstance(network, nn.Module):
        raise InputError(f"{spec}: made a {type(network).__name__}; wanted a torch.nn.Module")
    return network


def _import_module(spec: str, name: str) -> ModuleType:
    try:
        with without_hard_exit():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = f"needs {error.name!r}, which is not installed"
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            advice = "run it in the folder that has it, or install it"
            missing = f"there is no module {error.name!r} here; {advice}"
        raise InputError(f"{spec}: {missing}") from None
    except (Exception, SystemExit) as error:
        raise InputError(f"{spec}: importing {name} failed, {_describe(error)}") from None


def _describe(error: BaseException) -> str:
    """Return kind, text and place of an error in the user's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    place = "" if file is None else f" ({Path(file).name}, line {line})"
    return f"{type(error).__name__}: {first_line(error)}{place}"


def _is_quantised(module: nn.Module) -> bool:
    return any(
        "quantized" in type(part).__module__ and hasattr(part, "_packed_params")
        for part in module.modules()
    ) or any(
        not isinstance(tensor, nn.UninitializedParameter) and tensor.is_quantized
        for tensor in (*module.parameters(), *module.buffers())
    )


# --- Weights: read without running anything -----------------------------------------------------


def load_weights(module: nn.Module, path: Path) -> None:
    """Copy the weights in a file into a network; every one must be there and fit.

    Nothing in the file is unpickled but tensors and containers. The state dict may lie under
    ``state_dict`` or ``model`` of a checkpoint, and its names may have the prefixes of
    DataParallel, ``torch.compile`` and Lightning.
    """
    wanted = module.state_dict()
    tensors = _without_prefix(_read_weights(path), wanted)
    missing = [name for name in wanted if name not in tensors]
    unknown = [name for name in tensors if name not in wanted]
    faults = [f"lacks {_listed(missing)}"] if missing else []
    faults += [f"has {_listed(unknown)}, which the network does not"] if unknown else []
    if faults:
        raise InputError(
            f"{path}: {' and '.join(faults)}; give the weights of this network, or its factory "
            f"the options they were trained with"
        )
    lazy = (nn.UninitializedParameter, nn.UninitializedBuffer)
    pairs = [
        (name, mine, tensors[name]) for name, mine in wanted.items() if isinstance(mine, Tensor)
    ]
    wrong = [
        f"{name} {list(other.shape)} for {list(mine.shape)}"
        for name, mine, other in pairs
        if not isinstance(mine, lazy) and mine.shape != other.shape
    ]
    unreal = [name for name, mine, other in pairs if other.is_complex() and not mine.is_complex()]
    if wrong:
        raise InputError(
            f"{path}: the shapes of {_listed(wrong)} differ from the network's; give the factory "
            f"the options it was trained with"
        )
    if unreal:
        raise InputError(
            f"{path}: {_listed(unreal)} holds complex numbers and the network's are real; give the "
            f"weights of this network"
        )
    try:
        with quiet():
            module.load_state_dict(tensors)
    except Exception as error:  # a module may check more, or memory may end
        raise InputError(f"{path}: does not fit the network, {first_line(error)}") from None


def _read_weights(path: Path) -> Mapping[str, Any]:
    """Return the tensors of a file by name."""
    start = first_bytes(path, WEIGHTS_WANTED)
    if is_safetensors(start):
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except Exception as error:  # also for a type of number that this torch does not have
            raise InputError(f"{path}: is damaged or cut short ({first_line(error)})") from None
    if is_archive(start):
        require_weights_only(path)
    try:
        with quiet():
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its parsers happen to raise
        raise InputError(f"{path}: {_why_unread(error)}; wanted {WEIGHTS_WANTED}") from None
    return _state_dict(path, content)


def _why_unread(error: Exception) -> str:
    """Return why torch did not read a file of which only weights are read."""
    text = str(error)
    if "quantized" in text:
        return QUANTISED
    name = re.search(r"(?:GLOBAL|Unsupported global:?(?: GLOBAL)?|class) ([\w.]+)", text)
    if name:
        return f"holds a pickled {name[1]}, and is not opened: unpickling would run code"
    if "weights only" in text.lower():  # torch's long advice to trust the file
        return "is no file of weights, or damaged"
    return f"is no file of weights, or damaged ({first_line(error)})"


def _state_dict(path: Path, content: object) -> Mapping[str, Any]:
    """Return the state dict in a checkpoint: the content itself, or its one part that is one."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: holds a {type(content).__name__}; wanted {WEIGHTS_WANTED}")
    if any("_packed_params" in str(key) for key in content):
        raise InputError(f"{path}: {QUANTISED}")
    if _is_state_dict(content):
        return content
    nested = [key for key in _NESTED if _is_state_dict(content.get(key))]
    if not nested:
        nested = [str(key) for key, value in content.items() if _is_state_dict(value)]
    if len(nested) == 1 or (nested and nested[0] in _NESTED[:3]):
        part: Mapping[str, Any] = content[nested[0]]
        return part
    holds = f"has several ({_listed(nested)})" if nested else f"has {_listed(map(str, content))}"
    raise InputError(f"{path}: wanted one state dict, and this checkpoint {holds}; save it alone")


def _is_state_dict(content: object) -> bool:
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    )


def _without_prefix(tensors: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Strip known prefixes (DataParallel, torch.compile, Lightning) that all names have."""
    stripped = dict(tensors)
    free = [p for p in _PREFIXES if not any(name.startswith(p) for name in wanted)]
    while stripped and stripped.keys() != wanted.keys():
        shared = [p for p in free if all(name.startswith(p) for name in stripped)]
        if not shared:
            break
        stripped = {name.removeprefix(shared[0]): value for name, value in stripped.items()}
    return stripped


def _listed(names: Iterable[str]) -> str:
    """Return the first few of many names, and how many more there are.

    >>> _listed(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    first = list(names)
    text = ", ".join(first[:_LISTED])
    return text if len(first) <= _LISTED else f"{text} and {len(first) - _LISTED} more"


# --- What every loader needs --------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings and logs within: the caller says in one line what matters."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def first_line(error: BaseException | str) -> str:
    """Return the beginning of an error's message, or its kind if it has none.

    >>> first_line(ValueError("no such size\\nand so on"))
    'no such size'
    >>> first_line(KeyError())
    'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\s+", " ", lines[0]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# --- Programs: .pt2 and TorchScript files, which run when they are loaded -------------------------


def _load_program(path: Path) -> LoadedModel:
    """Load a file of ``torch.export.save``."""
    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:  # whatever torch's parsers raise
        raise InputError(
            f"{path}: torch {torch.__version__} cannot read this program ({first_line(error)}); "
            f"export the model again with this version"
        ) from None
    return _from_program(program, path)


def _load_script(path: Path, example: Tensor | None) -> LoadedModel:
    """Load a TorchScript file and convert it to a program, for an example [N, ...] of its input.

    The program must give the outputs of the script on the example.
    """
    if example is None:
        raise InputError(f"{path}: a TorchScript file is converted with an example; give one")
    try:
        with quiet(), _ended_by_interrupt():
            script = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:  # torch raises what its parsers happen to raise
        raise InputError(
            f"{path}: torch {torch.__version__} cannot read this TorchScript file "
            f"({_last_line(error)}); {_ADVICE}"
        ) from None
    if "quantized::" in str(script.inlined_graph):
        raise InputError(f"{path}: {QUANTISED}")
    parameters = {key: value.detach() for key, value in script.named_parameters()}
    kinds = {value.dtype for value in parameters.values() if value.is_floating_point()}
    if example.is_floating_point() and len(kinds) == 1:
        example = example.to(kinds.pop())
    try:
        with quiet(), torch.no_grad(), _ended_by_interrupt():
            wanted = script(example)
    except Exception as error:
        reason, shape = _last_line(error), list(example.shape[1:])
        raise UnfitShapeError(
            reason,
            f"{path}: the TorchScript model fails on samples of shape {shape} ({reason}); give "
            f"the shape it takes with --shape",
        ) from None
    try:
        with quiet():
            program = _converter(path)(script, (example,), {}).convert()
            loaded = _from_program(program, path)
            _restore_parameters(loaded.module, parameters)
            with torch.no_grad():
                output = loaded.module(example)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path}: torch cannot convert this TorchScript model ({first_line(error)}); {_ADVICE}"
        ) from None
    if not _same(output, wanted):
        raise InputError(f"{path}: torch converts this TorchScript model wrongly; {_ADVICE}")
    notes = ("converted from TorchScript by torch", *loaded.notes)
    return replace(loaded, kind="TorchScript file", notes=notes)


def _from_program(program: torch.export.ExportedProgram, path: Path) -> LoadedModel:
    """Return a program as a module that can be switched to training, and its input."""
    targets = [getattr(node.target, "namespace", "") for node in program.graph.nodes]
    if any(name.startswith(("quantized", "torchao")) for name in targets):
        raise InputError(f"{path}: {QUANTISED}")
    value = _only_input(program, path)
    with quiet():
        module = _module_of(program)
    notes = []
    if _set_to_evaluation(module):
        notes.append(
            "the program was exported in training mode; dropout and batch norm are run as in "
            "evaluation"
        )
    sizes = [size if isinstance(size, int) else None for size in value.shape]
    batch_size = sizes[0] if sizes else None
    if batch_size is not None:
        notes.append(f"the program takes batches of exactly {batch_size}")
    return LoadedModel(
        module=module,
        name=path.stem,
        kind="torch.export program",
        batch_size=batch_size,
        dtype=value.dtype,
        input_shape=tuple(sizes),
        notes=tuple(notes),
    )


def _only_input(program: torch.export.ExportedProgram, path: Path) -> Tensor:
    """Return the fake tensor that stands for the program's one input."""
    inputs = program.graph_signature.user_inputs
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    values = [node.meta.get("val") for node in nodes]
    spec = program.call_spec.in_spec
    positional = spec is None or len(spec.children()) < 1 or spec.children()[0].num_leaves == 1
    if len(inputs) != 1 or len(values) != 1 or not positional:
        names = ", ".join(map(str, inputs))
        raise InputError(
            f"{path}: the program takes {len(inputs)} inputs ({names}), and an audit feeds one "
            f"tensor, by position; export a module that takes one and makes the rest itself"
        )
    if not isinstance(values[0], Tensor):
        raise InputError(
            f"{path}: the program's input is no tensor; export a network that takes one"
        )
    return values[0]


def _module_of(program: torch.export.ExportedProgram) -> nn.Module:
    """Return the program's module, which torch forbids to switch to evaluation: it has no modes."""
    options = inspect.signature(program.module).parameters
    module = program.module(**({"check_guards": False} if "check_guards" in options else {}))
    for switch in ("train", "eval"):
        module.__dict__.pop(switch, None)
    module.eval()
    return module


def _set_to_evaluation(module: nn.Module) -> bool:
    """Set every operator that has modes to evaluation; return whether any was in training."""
    changed = False
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload):
                    changed |= _set_node_to_evaluation(node, node.target)
            part.recompile()
    return changed


def _set_node_to_evaluation(node: torch.fx.Node, operator: torch._ops.OpOverload) -> bool:
    names = [argument.name for argument in operator._schema.arguments]
    values = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if "running_mean" in names and values.get("running_mean") is None:
        return False  # a batch norm without running statistics takes the batch's in any mode
    calm: dict[str, Any] = {n: False for n in ("train", "training") if values.get(n) is True}
    if values.get("dropout_p"):
        calm["dropout_p"] = 0.0
    for name, value in calm.items():
        if name in node.kwargs:
            node.update_kwarg(name, value)
        else:
            node.update_arg(names.index(name), value)
    return bool(calm)


def _converter(path: Path) -> Any:
    try:
        from torch._export.converter import TS2EPConverter
    except ImportError:
        raise InputError(
            f"{path}: torch {torch.__version__} has no converter of TorchScript files; {_ADVICE}"
        ) from None
    return TS2EPConverter


def _restore_parameters(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Turn buffers into parameters, which the converter turned into buffers."""
    for name in parameters:
        owner_name, _, last = name.rpartition(".")
        try:
            owner = module.get_submodule(owner_name)
        except AttributeError:  # the program does without it
            continue
        tensor = owner._buffers.pop(last, None)
        if tensor is not None:
            owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))


def _same(output: object, wanted: object) -> bool:
    if isinstance(wanted, Tensor):
        return isinstance(output, Tensor) and torch.allclose(
            output, wanted, rtol=1e-3, atol=1e-4, equal_nan=True
        )
    if isinstance(wanted, (tuple, list)):
        return isinstance(output, (tuple, list)) and all(map(_same, output, wanted))
    return True


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once within.

    TorchScript runs in native code, where Python's handler waits for the end of the program; a
    program that loops for ever would never let it run.
    """
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _last_line(error: Exception) -> str:
    """Return the last line of a message, where TorchScript says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return first_line(lines[-1]) if lines else type(error).__name__
