"""Loading what ``torch.export.save`` wrote."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mahalens.auditing.model_files.archives import copy_program
from mahalens.auditing.model_files.loaded import LoadedModel
from mahalens.auditing.model_files.safely import first_line, quiet, weights_only
from mahalens.errors import InputError

EXPORT = (
    "program = torch.export.export(model.eval(), (example,), "
    'dynamic_shapes=({0: torch.export.Dim("batch")},)); torch.export.save(program, "model.pt2")'
)
"""How to export a network, for messages."""
_TRAINING_ARGUMENTS = ("train", "training")


def load_program(path: Path) -> LoadedModel:
    """Load a program without unpickling or evaluating anything unchecked."""
    with tempfile.TemporaryDirectory(prefix="mahalens-") as folder:
        copy = Path(folder) / "program.pt2"
        try:
            copy_program(path, copy)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        try:
            with quiet(), weights_only():
                program = torch.export.load(copy)
        except Exception as error:  # whatever torch's parsers raise
            raise InputError(
                f"{path}: torch {torch.__version__} cannot read this program "
                f"({first_line(error)}); export the model again with this version"
            ) from None
    try:
        return from_program(program, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def from_program(program: torch.export.ExportedProgram, name: str) -> LoadedModel:
    """A program as a module that can be switched between training and evaluation, and its input."""
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
