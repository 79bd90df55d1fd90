"""Load programs, ``.pt2`` and TorchScript files, for users who trust where they come from.

Loading a program runs it. :func:`mahalens.auditing.load.load_model` imports this module only after
:func:`~mahalens.auditing.recognise.recognise_model` was given ``trust=True``.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mahalens.auditing.load import QUANTISED, LoadedModel, UnfitShapeError, first_line, quiet
from mahalens.auditing.recognise import EXPORT
from mahalens.errors import InputError

_ADVICE = f"export the model instead, where its Python code is: {EXPORT}"


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
    return _from_program(program, path)


def load_script(path: Path, example: Tensor | None) -> LoadedModel:
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
