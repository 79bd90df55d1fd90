"""What is wrong with starting weights, before any training: :func:`check_init`."""

from __future__ import annotations

from typing import Any

import msgspec
from torch import nn

from mahalens.auditing.network import audit
from mahalens.auditing.record import LayerRecord
from mahalens.auditing.watch.batches import Batches
from mahalens.auditing.watch.forward import Runner
from mahalens.init.layer_check import LayerCheck
from mahalens.init.norms import fresh_norms, settled_norms
from mahalens.init.prototypes import check_prototypes, prototype_layers

_UNUSED = {"perturb": False, "examples": False, "labelled": False, "baseline": None}


class InitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with starting weights; made by :func:`check_init`."""

    layers: tuple[LayerCheck, ...]
    samples: int
    unread: tuple[str, ...] = ()
    """Parts with weights that are read neither as hyperplanes nor as prototypes."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with any layer that was read."""
        return all(layer.ok for layer in self.layers)

    def layer(self, name: str) -> LayerCheck:
        """The layer of that name."""
        from mahalens.errors import InputError

        for layer in self.layers:
            if layer.name == name:
                return layer
        known = ", ".join(layer.name for layer in self.layers)
        raise InputError(f"there is no layer {name!r} in this check; there are {known}")

    def __str__(self) -> str:
        """The answer, then a line for each layer that there is something to say of."""
        count, bad = len(self.layers), [layer for layer in self.layers if not layer.ok]
        on = f"on {self.samples} sample{'s' * (self.samples != 1)}"
        if not bad:
            lines = [f"ready to train: nothing wrong in {count} layer{'s' * (count > 1)} {on}"]
        else:
            lines = [f"not ready: something is wrong in {len(bad)} of {count} layers {on}"]
        for layer in self.layers:
            follows = "" if layer.activation == "none" else f", {layer.activation}"
            said = [*layer.problems, *(f"by the way, {remark}" for remark in layer.remarks)]
            if said:
                lines.append(f"  {layer.name} ({layer.kind}{follows}): {'; '.join(said)}")
        if self.unread:
            lines.append(f"  not read: {', '.join(self.unread)}")
        return "\n".join(lines)


def check_init(model: nn.Module, data: Any, **options: Any) -> InitCheck:
    """Look at a model before it is trained: units and inputs that cannot be reached.

    An audit (:func:`mahalens.audit`) reads every Linear and every convolution on the data:

    - **dead**: units whose activation is 0 on all data. Behind ReLU they get no gradient, ever;
    - **outside**: other units with all data on one side of their hyperplane: they divide nothing,
      and behind ReLU or Abs they are linear;
    - **flat**: constant units, and those at a flat end of a sigmoid or tanh on nearly all data;
    - **copies**: pairs with the same hyperplane and side;
    - **silent**: inputs that reach no unit, so that nothing behind the layer can tell them apart.
      Of a convolution patches are counted, and said by the way: a blank one is no fault;
    - **faulty**: units that are NaN or infinite.

    Units of ``OffsetL2``, ``Mahalanobis`` and ``DistanceHead`` are distances. There **outside** are
    prototypes that no input is nearest to, and **copies** those at one place that measure alike.

    The output layer is held to the same, except for ``outside``: nothing bends there. Batch norms
    that have seen nothing yet are taken as they will be in training, with the statistics of the
    data. The model is left as it was.

    Args:
        model: any ``nn.Module``.
        data: as for :func:`mahalens.audit`; labels are not looked at.
        **options: of :func:`mahalens.audit`, such as ``batch_size``, ``layers`` or ``tolerance``.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
        >>> state = {"0.weight": torch.ones(2, 1), "0.bias": torch.tensor([-1.0, -9.0])}
        >>> _ = model.load_state_dict(state)
        >>> print(check_init(model, torch.tensor([[0.0], [2.0], [3.0], [4.0]])))
        not ready: something is wrong in 1 of 1 layers on 4 samples
          0 (Linear, relu): 1 of 2 units reached by no input (1); 25 % of inputs reach no unit (0)
    """
    if not isinstance(model, nn.Module) or not fresh_norms(model):
        return _check(model, data, options)
    batches = Batches(data, options.get("batch_size", 512))
    try:
        with settled_norms(Runner(model, options.get("forward")), batches):
            return _check(model, data, options)
    finally:
        batches.restore()


def _check(model: nn.Module, data: Any, options: dict[str, Any]) -> InitCheck:
    layers = options.pop("layers", None)
    known = prototype_layers(model) if isinstance(model, nn.Module) else {}
    asked = known if layers is None else {name: known[name] for name in layers if name in known}
    others = None if layers is None else [name for name in layers if name not in known]
    found: list[LayerCheck] = []
    if asked:
        running = {name: options[name] for name in ("batch_size", "forward") if name in options}
        found, samples, more = check_prototypes(model, asked, data, **running)
        if found and (others == [] or (others is None and not more)):
            return InitCheck(layers=tuple(found), samples=samples)
    record = audit(model, data, layers=others, **{**_UNUSED, **options})
    # The audit reads prototypes as well, a head's under the head's name or that of its distances.
    prototypes = {name for layer in found for name in (layer.name, f"{layer.name}.distance")}
    others_read = [layer for layer in record.layers if layer.name not in prototypes]
    read = [*map(_checked, others_read), *found]
    # A PointSlope is read as the Linear that it is, though its points are no weight of one.
    names = {layer.name for layer in read} | prototypes
    return InitCheck(
        layers=tuple(read),
        samples=record.data.samples,
        unread=tuple(part.name for part in record.skipped if part.name not in names),
    )


def _checked(layer: LayerRecord) -> LayerCheck:
    units = layer.units
    dead = set(units.dead)
    beyond = ((units.least > 0) | (units.greatest < 0)).nonzero()[:, 0].tolist()
    bends = layer.activation != "none"
    return LayerCheck(
        name=layer.name,
        kind=layer.kind,
        units=layer.units_count,
        activation=layer.activation,
        dead=units.dead,
        outside=tuple(unit for unit in beyond if unit not in dead) if bends else (),
        flat=tuple(unit for unit in units.saturated if unit not in dead),
        copies=() if layer.pairs is None else layer.pairs.duplicate,
        faulty=tuple(units.mean.isnan().nonzero()[:, 0].tolist()),
        positions=layer.positions,
        silent=units.silent_share,
        silent_samples=units.silent_samples,
    )
