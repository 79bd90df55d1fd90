"""The sides that are compared: each trains the same trials from the same start."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mahalens import SGD, Adam, Chain, CrossEntropy, MeanSquaredError, stack

Epochs = Callable[[int], None]
"""Trains for so many more epochs."""
BLOCKS = (None, 256, 512, 1024)
"""Samples at a time in the products that are the limit."""

ADAM = {"lr": 1e-3, "betas": (0.9, 0.99)}
SGD_RATE = {"lr": 1e-3}


def ours(modules: list[nn.Module], x: Tensor, y: Tensor, engine: str = "auto") -> Epochs:
    """The stacked engine, as :func:`mahalens.fit` uses it."""
    trials = stack(modules)
    labels = not y.dtype.is_floating_point
    objective = (CrossEntropy if labels else MeanSquaredError)(trials.model, x, y, engine=engine)
    far = 10**9
    solver = (
        SGD(objective, trials, far, **SGD_RATE) if labels else Adam(objective, trials, far, **ADAM)
    )

    def epochs(count: int) -> None:
        # The same as `solve`, but not to the end.
        until = solver.epoch + count
        solver.milestones = (until,)
        while solver.epoch < until:
            solver.advance()

    return epochs


def by_torch(modules: list[nn.Module], x: Tensor, y: Tensor) -> Epochs:
    """The same where there is no compiler."""
    return ours(modules, x, y, engine="torch")


def plain_loop(modules: list[nn.Module], x: Tensor, y: Tensor) -> Epochs:
    """One trial after another with nn.Module, autograd and torch.optim: what people write."""
    modules = [copy.deepcopy(module) for module in modules]
    labels = not y.dtype.is_floating_point
    loss = nn.CrossEntropyLoss() if labels else nn.MSELoss()
    optimizers = [
        torch.optim.SGD(m.parameters(), **SGD_RATE)
        if labels
        else torch.optim.Adam(m.parameters(), **ADAM)
        for m in modules
    ]

    def epochs(count: int) -> None:
        for module, optimizer in zip(modules, optimizers, strict=True):
            for _ in range(count):
                optimizer.zero_grad()
                loss(module(x), y).backward()
                optimizer.step()

    return epochs


def vmapped(modules: list[nn.Module], x: Tensor, y: Tensor) -> Epochs:
    """torch.func.vmap over stacked modules, torch.optim on the stacked parameters."""
    template = copy.deepcopy(modules[0]).to("meta")
    parameters, _ = torch.func.stack_module_state(modules)
    labels = not y.dtype.is_floating_point
    everything = list(parameters.values())
    optimizer = (
        torch.optim.SGD(everything, **SGD_RATE) if labels else torch.optim.Adam(everything, **ADAM)
    )

    def loss(one: dict[str, Tensor]) -> Tensor:
        output = torch.func.functional_call(template, one, (x,))
        if labels:
            return nn.functional.cross_entropy(output, y)
        return (output - y).square().mean()

    gradient = torch.func.vmap(torch.func.grad(loss))

    def epochs(count: int) -> None:
        for _ in range(count):
            for name, grad in gradient(parameters).items():
                parameters[name].grad = grad
            optimizer.step()

    return epochs


def by_jax(modules: list[nn.Module], x: Tensor, y: Tensor) -> Epochs:
    """JAX as its users write it: ``jit`` of a ``scan`` over epochs, ``vmap`` over trials.

    Adam and SGD are written out as torch.optim computes them. Data and state stay on JAX's side.
    """
    import jax
    from jax import lax
    from jax import numpy as jnp

    def norm(z: Any) -> Any:
        squares = (z * z).sum(-1)  # the slope of the root is 0 at 0, as in Norm
        return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)

    functions = {"Abs": jnp.abs, "ReLU": jax.nn.relu, "Sigmoid": jax.nn.sigmoid, "Norm": norm}
    names = [type(layer).__name__ for layer in modules[0]]
    inputs, targets = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    labels = not y.dtype.is_floating_point

    def loss(trial: dict[str, Any]) -> Any:
        z = inputs
        for place, name in enumerate(names):
            if name == "Linear":
                z = z @ trial[f"{place}.weight"].T + trial[f"{place}.bias"]
            else:
                z = functions[name](z)
        if labels:
            return -jnp.take_along_axis(jax.nn.log_softmax(z), targets[:, None], 1).mean()
        return jnp.square(z - targets).mean()

    gradient = jax.vmap(jax.grad(loss))

    def sgd(state: Any, _: Any) -> Any:
        step = SGD_RATE["lr"]
        return jax.tree.map(lambda p, g: p - step * g, state, gradient(state)), None

    def adam(state: Any, _: Any) -> Any:
        values, first, second, count = state
        (b1, b2), count = ADAM["betas"], count + 1
        slopes = gradient(values)
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, first, slopes)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, second, slopes)

        def moved(p: Any, m: Any, v: Any) -> Any:
            spread = jnp.sqrt(v / (1 - b2**count)) + 1e-8
            return p - ADAM["lr"] * m / (1 - b1**count) / spread

        return (jax.tree.map(moved, values, first, second), first, second, count), None

    parameters, _ = torch.func.stack_module_state(modules)
    values = {name: jnp.asarray(value.detach().numpy()) for name, value in parameters.items()}
    none = jax.tree.map(jnp.zeros_like, values)
    state = [values if labels else (values, none, none, jnp.zeros(()))]
    step = sgd if labels else adam
    run = jax.jit(lambda state, count: lax.scan(step, state, length=count)[0], static_argnums=1)

    def epochs(count: int) -> None:
        state[0] = jax.block_until_ready(run(state[0], count))

    return epochs


def products(modules: list[nn.Module], x: Tensor, y: Tensor, block: int | None = None) -> Epochs:
    """The limit: the two products with the data that no method avoids, and nothing else.

    ``x Wᵀ`` and ``Gᵀ x`` for the first layers of all trials together, by torch's matrix library;
    ``block`` samples at a time, or all at once.
    """
    weight = torch.cat([module[0].weight.detach() for module in modules])  # [T·K, D]
    parts = [(part.T.contiguous(), part) for part in x.split(block or len(x))]
    outputs = torch.empty(len(weight), len(parts[0][1]))
    grads = torch.zeros_like(weight)

    def epochs(count: int) -> None:
        for _ in range(count):
            for columns, rows in parts:
                output = outputs[:, : len(rows)]
                torch.mm(weight, columns, out=output)
                grads.addmm_(output, rows)

    return epochs


LIMITS = {f"products {block}": partial(products, block=block) for block in BLOCKS}
"""The limit in blocks of several sizes, of which the fastest counts."""


def limit_of(seconds: dict[str, float]) -> float:
    """Return the shortest time of the sides that are limits."""
    return min(seconds[name] for name in LIMITS)


def modules_of(chain: Chain, trials: int) -> list[nn.Module]:
    """Plain modules with PyTorch's default starting weights."""
    return [chain.build() for _ in range(trials)]
