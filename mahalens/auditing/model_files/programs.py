"""Loading programs, ``.pt2`` and TorchScript files, for users who trust where they come from.

Loading a program runs it: nothing here is called before
:func:`~mahalens.auditing.model_files.look.look_at` was told of that trust.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.model_files.loaded import (
    QUANTISED,
    LoadedModel,
    ended_by_interrupt,
    first_line,
    quiet,
)
from mahalens.auditing.model_files.look import EXPORT
from mahalens.errors import InputError

ADVICE = f"export the model instead, where its Python code is: {EXPORT}"
_TRAINING_ARGUMENTS = ("train", "training")


def load_program(path: Path) -> LoadedModel:
    """Load a file of ``torch.export.save``."""
    try:
        with quiet():
            program = torch.export.load(path)
    except Exception as error:  # whatever torch's parsers raise
        raise InputError(
            f"{path}: torch {torch.__version__} cannot read this program ({first_line(error)}); "
            f"export the model again with this version"
        ) from None
    try:
        return from_program(program, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def load_script(path: Path, example: Tensor | None) -> LoadedModel:
    """Load a TorchScript file and convert it to a program, for an example [N, ...] of its input."""
    if example is None:
        raise InputError(f"{path}: a TorchScript file is converted with an example; give one")
    try:
        with quiet(), ended_by_interrupt():
            script = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:  # torch raises what its parsers happen to raise
        raise InputError(
            f"{path}: torch {torch.__version__} cannot read this TorchScript file "
            f"({_last_line(error)}); {ADVICE}"
        ) from None
    try:
        return _converted(script, example, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def from_program(program: torch.export.ExportedProgram, name: str) -> LoadedModel:
    """Return a program as a module that can be switched to training, and its input."""
    targets = [getattr(node.target, "namespace", "") for node in program.graph.nodes]
    if any(name.startswith(("quantized", "torchao")) for name in targets):
        raise InputError(QUANTISED)
    value = _only_input(program)
    with quiet():
        module = _module_of(program)
    notes = []
    if _evaluating(module):
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
        name=name,
        kind="torch.export program",
        batch_size=batch_size,
        dtype=value.dtype,
        input_shape=tuple(sizes),
        notes=tuple(notes),
    )


def _only_input(program: torch.export.ExportedProgram) -> Any:
    """The fake tensor that stands for the program's one input."""
    wanted = program.graph_signature.user_inputs
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in wanted]
    values = [node.meta.get("val") for node in nodes]
    spec = program.call_spec.in_spec
    positional = spec is None or len(spec.children()) < 1 or spec.children()[0].num_leaves == 1
    if len(wanted) != 1 or len(values) != 1 or not positional:
        names = ", ".join(map(str, wanted))
        raise InputError(
            f"the program takes {len(wanted)} inputs ({names}), and an audit feeds one tensor, by "
            f"position; export a module that takes one and makes the rest itself"
        )
    if not isinstance(values[0], torch.Tensor):
        raise InputError("the program's input is no tensor; export a network that takes one")
    return values[0]


def _module_of(program: torch.export.ExportedProgram) -> nn.Module:
    """The program's module, which torch forbids to switch to evaluation: it has no modes."""
    asked = inspect.signature(program.module).parameters
    module = program.module(**({"check_guards": False} if "check_guards" in asked else {}))
    for switch in ("train", "eval"):
        module.__dict__.pop(switch, None)
    module.eval()
    return module


def _evaluating(module: Any) -> bool:
    """Set every operator that behaves otherwise in training to evaluation; whether any was not."""
    changed = False
    graphs = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    for part in graphs:
        for node in part.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                changed |= _evaluate(node)
        part.recompile()
    return changed


def _evaluate(node: torch.fx.Node) -> bool:
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if "running_mean" in names and given.get("running_mean") is None:
        return False  # a batch norm without running statistics takes the batch's in any mode
    calm: dict[str, Any] = {name: False for name in _TRAINING_ARGUMENTS if given.get(name) is True}
    if given.get("dropout_p"):
        calm["dropout_p"] = 0.0
    for name, value in calm.items():
        if name in node.kwargs:
            node.update_kwarg(name, value)
        else:
            node.update_arg(names.index(name), value)
    return bool(calm)


def _converted(script: Any, example: Tensor, name: str) -> LoadedModel:
    try:
        from torch._export.converter import TS2EPConverter
    except ImportError:
        raise InputError(
            f"torch {torch.__version__} has no converter of TorchScript files; {ADVICE}"
        ) from None
    if "quantized::" in str(script.inlined_graph):
        raise InputError(QUANTISED)
    parameters = {key: value.detach() for key, value in script.named_parameters()}
    kinds = {value.dtype for value in parameters.values() if value.is_floating_point()}
    if example.is_floating_point() and len(kinds) == 1:
        example = example.to(kinds.pop())
    try:
        with quiet(), torch.no_grad(), ended_by_interrupt():
            wanted = script(example)
    except Exception as error:
        raise InputError(
            f"the TorchScript model fails on samples of shape {list(example.shape[1:])} "
            f"({_last_line(error)}); give the shape it takes with --shape"
        ) from None
    try:
        with quiet():
            program = TS2EPConverter(script, (example,), {}).convert()
            loaded = from_program(program, name)
            _as_parameters(loaded.module, parameters)
            with torch.no_grad():
                given = loaded.module(example)
    except Exception as error:
        raise InputError(
            f"torch cannot convert this TorchScript model ({first_line(error)}); {ADVICE}"
        ) from None
    if not _same(given, wanted):
        raise InputError(f"torch converts this TorchScript model wrongly; {ADVICE}")
    return LoadedModel(
        module=loaded.module,
        name=name,
        kind="TorchScript file",
        batch_size=loaded.batch_size,
        dtype=loaded.dtype,
        input_shape=loaded.input_shape,
        notes=("converted from TorchScript by torch", *loaded.notes),
    )


def _as_parameters(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """The converter turns parameters into buffers; turn them back."""
    for name in parameters:
        owner_name, _, last = name.rpartition(".")
        try:
            owner = module.get_submodule(owner_name)
        except AttributeError:  # the program does without it
            continue
        tensor = owner._buffers.pop(last, None)
        if tensor is not None:
            owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))


def _same(given: object, wanted: object) -> bool:
    if isinstance(wanted, Tensor):
        return isinstance(given, Tensor) and torch.allclose(
            given, wanted, rtol=1e-3, atol=1e-4, equal_nan=True
        )
    if isinstance(wanted, (tuple, list)):
        return isinstance(given, (tuple, list)) and all(map(_same, given, wanted))
    return True


def _last_line(error: Exception) -> str:
    """TorchScript puts its own story first and what went wrong last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return first_line(Exception(lines[-1])) if lines else type(error).__name__
