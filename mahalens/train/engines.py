"""Losses of stacked trials and the two torch engines that differentiate them.

:class:`TorchEngine` works on chains, with gradients written out; :class:`FunctionalEngine` on any
other module, through ``torch.func``. The third engine is :mod:`mahalens.train.compiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.nn import Chain
from mahalens.train.layers import LinearRule, NormRule, ParameterRule, chain_rules

if TYPE_CHECKING:
    from mahalens.train.stack import Template

_BLOCK_BYTES = 1 << 22
"""Size of one block of activations: small enough to stay in the shared cache."""


class _SquaredError:
    """``1/(N K) Σ (f(xₙ)ₖ - yₙₖ)²``, as ``nn.MSELoss``; outputs are feature-major, [T, K, n]."""

    name, label = "mse", "MSE"

    def check(self, outputs: int | None, x: Tensor, y: Tensor) -> Tensor:
        """Return targets as ``[S, N, K]`` or ``[S, N]``, S = 1 where trials share them; or raise.

        ``outputs`` is the number of units of the output, ``None`` for one number per sample.
        """
        rows = tuple(x.shape[-2:-1])
        wanted = rows if outputs is None else (*rows, outputs)
        trials = tuple(x.shape[:1]) if x.ndim == 3 else ("T",)
        per_trial = y.ndim == len(wanted) + 1 and (x.ndim == 2 or len(y) == len(x))
        if tuple(y.shape[per_trial:]) != wanted:
            shapes = " or ".join(_written(shape) for shape in (wanted, (*trials, *wanted)))
            raise InputError(
                f"targets of shape {_written(y.shape)} for x of shape {_written(x.shape)} and "
                f"{_per_sample(outputs)}; give {shapes}"
            )
        if y.dtype != x.dtype:
            raise InputError(f"x in {x.dtype}, y in {y.dtype}; make them equal")
        check_finite("y", y)
        y = y if per_trial else y.unsqueeze(0)
        return y.unsqueeze(-1) if outputs is None else y

    def check_output(self, output: Tensor, y: Tensor) -> None:
        """Refuse targets ``[S, N, ...]`` that do not fit a module's output on some samples."""
        if output.shape[1:] != y.shape[2:] or not y.dtype.is_floating_point:
            raise InputError(
                f"targets of shape {_written(('N', *y.shape[2:]))} in {y.dtype} for outputs of "
                f"shape {_written(('N', *output.shape[1:]))} in {output.dtype}; make them equal"
            )
        check_finite("y", y)

    def targets(self, y: Tensor) -> Tensor:
        """Lay out the targets of a block as :meth:`total` wants them."""
        return y.transpose(1, 2).contiguous()

    def scale(self, outputs: int | None, samples: int) -> float:
        """Return the factor that turns the total into the mean."""
        return 1 / (samples * (outputs or 1))

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum over samples ``[T]``."""
        return (output - target).square_().sum((1, 2))

    def total_and_slope(
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        residual = output - target
        return (residual * residual).sum((1, 2)), residual.mul_(2 * scale)

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of one plain module from its outputs, as one number."""
        return (output - target).square().mean()


class _CrossEntropy:
    """``1/N Σ (log Σₖ exp(fₖ(xₙ)) - f_c(xₙ))`` for the class c of sample n."""

    name, label = "cross-entropy", "cross-entropy"

    def check(self, outputs: int | None, x: Tensor, y: Tensor) -> Tensor:
        if outputs is None or outputs < 2:
            raise InputError(
                f"cross-entropy for {_per_sample(outputs)}; end the chain in one unit per class, "
                "such as Linear(10)"
            )
        per_trial = y.ndim == 2 and (x.ndim == 2 or len(y) == len(x))
        if tuple(y.shape[per_trial:]) != tuple(x.shape[-2:-1]) or y.ndim > 2:
            raise InputError(
                f"labels of shape {_written(y.shape)} for x of shape {_written(x.shape)}; "
                "give one label per sample"
            )
        _check_labels(y, outputs)
        y = y.to(torch.int64)
        return y if per_trial else y.unsqueeze(0)

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if output.ndim < 2 or output.shape[2:] != y.shape[2:]:
            raise InputError(
                f"labels of shape {_written(('N', *y.shape[2:]))} for outputs of shape "
                f"{_written(('N', *output.shape[1:]))}; give one label per sample, and let the "
                "module end in one unit per class"
            )
        _check_labels(y, output.shape[1])

    def targets(self, y: Tensor) -> Tensor:
        return y.unsqueeze(1)

    def scale(self, outputs: int | None, samples: int) -> float:
        return 1 / samples

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        target = target.expand(len(output), -1, -1)
        chosen = output.gather(1, target)
        return (output.logsumexp(1, keepdim=True) - chosen).sum((1, 2))

    def total_and_slope(
        self, output: Tensor, target: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        target = target.expand(len(output), -1, -1)
        log_share = output.log_softmax(1)
        total = -log_share.gather(1, target).sum((1, 2))
        slope = log_share.exp_().mul_(scale)
        return total, slope.scatter_add_(1, target, slope.new_tensor(-scale).expand_as(target))

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, target)


Loss = _SquaredError | _CrossEntropy
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (_SquaredError(), _CrossEntropy())}


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and infinity in a user's data: they would end every trial."""
    if not bool(tensor.isfinite().all()):
        place = (~tensor.isfinite()).nonzero()[0].tolist()
        raise InputError(f"{name} holds {float(tensor[tuple(place)])} at {place}; remove it")


def _check_labels(y: Tensor, classes: int) -> None:
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise InputError(f"labels in {y.dtype}; give whole numbers, torch.int64")
    outside = ((y < 0) | (y >= classes)).nonzero()
    if len(outside):
        place = tuple(outside[0].tolist())
        raise InputError(
            f"label {int(y[place])} of sample {place[-1]}, but there are {classes} classes; "
            f"give 0 to {classes - 1}"
        )


def _written(shape: tuple[int | str, ...] | torch.Size) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _per_sample(outputs: int | None) -> str:
    return "one number per sample" if outputs is None else f"{outputs} outputs per sample"


class TorchEngine:
    """Loss and gradient of T trials of a chain, with gradients written out on stacked tensors.

    Samples are processed in blocks that fit in the cache; memory does not grow with N·T·K.

    Shapes: x ``[S, N, D]``; y ``[S, N, K]`` numbers or labels ``[S, N]``, with S = T where each
    trial has different ones and S = 1 where they share.
    """

    name = "torch"

    def __init__(
        self, chain: Chain, loss: Loss, x: Tensor, y: Tensor, *, block: int | None = None
    ) -> None:
        self.chain, self._loss, self._x, self._y = chain, loss, x, y
        self.samples = x.shape[1]
        self._block = block
        self.rules = chain_rules(chain)
        # Nothing below the first layer with parameters needs a gradient.
        learns = [isinstance(rule, ParameterRule) for rule in self.rules]
        self._first = learns.index(True)
        first = chain.layers[0]
        self._shared = first.kind == "Linear" and len(x) == 1
        self._ones = self._shared and first.bias
        self._cut: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def loss(self, values: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the loss ``[T]`` of the trials ``index`` with these values ``[T, P]``."""
        total = values.new_zeros(len(values))
        for columns, target in self._blocks(len(values), index, rows):
            total += self._loss.total(self._forward(values, columns), target)
        return total * self._loss.scale(self.chain.outputs, self._count(rows))

    def loss_and_gradient(
        self, values: Tensor, index: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return loss ``[T]`` and gradient ``[T, P]``, of all samples or of rows ``[T, n]``."""
        gradient = torch.zeros_like(values)
        total = values.new_zeros(len(values))
        scale = self._loss.scale(self.chain.outputs, self._count(rows))
        for columns, target in self._blocks(len(values), index, rows):
            output = self._forward(values, columns)
            part, slope = self._loss.total_and_slope(output, target, scale)
            total += part
            self._backward(values, slope, gradient)
        return total * scale, gradient

    def outputs(self, values: Tensor, index: Tensor) -> Tensor:
        """Return outputs ``[T, N, K]``, one unit after a ``Norm``."""
        blocks = self._blocks(len(values), index)
        return torch.cat([self._forward(values, x).transpose(1, 2) for x, _ in blocks], 1)

    def _count(self, rows: Tensor | None) -> int:
        return self.samples if rows is None else rows.shape[1]

    def _blocks(
        self, trials: int, index: Tensor, rows: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Feature-major inputs and targets of one block of samples after the other.

        Inputs are ``[D, n]`` where trials share them and begin with a ``Linear`` (with a row of
        ones below for its bias), otherwise ``[T, D, n]``.
        """
        widest = max([*self.chain.widths[1:], self.chain.outputs or 1])
        n = self._block or max(32, _BLOCK_BYTES // (trials * widest * self._x.element_size()))
        if rows is not None:
            for part in rows.split(n, 1):
                yield self._gathered(index, part)
        elif len(self._x) > 1 or len(self._y) > 1:
            for start in range(0, self.samples, n):
                stop = min(start + n, self.samples)
                x, y = self._x[:, start:stop], self._y[:, start:stop]
                x = x[index] if len(x) > 1 else x
                y = y[index] if len(y) > 1 else y
                yield self._columns(x, trials), self._loss.targets(y)
        else:
            n = min(n, self.samples)
            if n not in self._cut:
                pairs = zip(self._x.split(n, 1), self._y.split(n, 1), strict=True)
                self._cut = {n: [(self._columns(x, 1), self._loss.targets(y)) for x, y in pairs]}
            for columns, target in self._cut[n]:
                yield columns if self._shared else columns.expand(trials, -1, -1), target

    def _gathered(self, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return a mini-batch of every trial, ``rows`` ``[T, n]``."""
        if len(self._x) == 1 and len(self._y) == 1 and bool((rows == rows[:1]).all()):
            x, y = self._x[:, rows[0]], self._y[:, rows[0]]
        else:
            trial = index[:, None]
            x = self._x[trial if len(self._x) > 1 else torch.zeros_like(trial), rows]
            y = self._y[trial if len(self._y) > 1 else torch.zeros_like(trial), rows]
        return self._columns(x, len(index)), self._loss.targets(y)

    def _columns(self, x: Tensor, trials: int) -> Tensor:
        """Samples ``[S, n, D]`` feature-major, as the first layer wants them."""
        if self._shared and len(x) == 1:
            rows = x[0]
            if self._ones:
                rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            return rows.T.contiguous()
        return x.transpose(1, 2).contiguous().expand(trials, -1, -1)

    def _forward(self, values: Tensor, columns: Tensor) -> Tensor:
        """Outputs ``[T, K, n]``, one unit after a ``Norm``."""
        h = columns
        for rule in self.rules:
            h = rule.forward(h, values) if isinstance(rule, ParameterRule) else rule.forward(h)
        return h

    def _backward(self, values: Tensor, grad: Tensor, gradient: Tensor | None) -> None:
        """Add the gradient ``[T, P]`` that follows from ``grad``, the gradient of the outputs.

        Without ``gradient``, every ``Linear`` just stores the gradient of its output.
        """
        for place in reversed(range(self._first, len(self.rules))):
            rule = self.rules[place]
            if not isinstance(rule, ParameterRule):
                grad = rule.backward(grad)
                continue
            if gradient is not None:
                rule.add_gradient(grad, values, gradient)
            elif isinstance(rule, LinearRule):
                rule.grad = grad
            if place > self._first:
                grad = rule.backward(grad, values)

    @property
    def has_exact_curvature(self) -> bool:
        """Whether the Hessian is written out for this chain: one ``Linear``, then a norm."""
        return [type(rule) for rule in self.rules] == [LinearRule, NormRule]

    def curvature(
        self, values: Tensor, exact: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss ``[T]``, ``Jᵀr/N`` ``[T, P]`` and a curvature matrix ``[T, P, P]``.

        For the squared error of a chain with one output and no units but ``Linear``, with few
        parameters. With r the residuals and J their Jacobian, the gradient of the loss is
        ``2 Jᵀr/N`` and its Gauss-Newton curvature ``2 JᵀJ/N``; both are returned without the 2.
        Where ``exact`` ``[T]`` is true, the matrix is half the Hessian instead. For one ``Linear``
        and ``f = ‖a(z)‖`` that costs no more: with ``q = (a a')'``,
        ``H = 1/N Σₙ (yₙ/fₙ) Jₙ Jₙᵀ + 1/N Σₙ (rₙ qₙ/fₙ) x̃ₙ x̃ₙᵀ``, the last sum unit by unit.
        """
        trials, width = values.shape
        total = values.new_zeros(trials)
        slope = values.new_zeros(trials, width)
        matrix = values.new_zeros(trials, width, width)
        for columns, target in self._blocks(trials, torch.arange(trials)):
            output = self._forward(values, columns)  # [T, 1, n]
            residual = output - target
            total += (residual * residual).sum((1, 2))
            norm = self.rules[-1]
            if exact is not None and isinstance(norm, NormRule):
                bent = norm.bend() * torch.where(output == 0, 0, residual / output)
                bent = bent * exact[:, None, None]  # [T, K, n]
                blocks = (bent.unsqueeze(2) * columns) @ columns.T  # [T, K, D+1, D+1]
                _diagonal_blocks(matrix, blocks.shape[1]).add_(blocks)
            self._backward(values, torch.ones_like(residual), None)
            jacobian = self._jacobian()  # [T, P, n]
            slope += torch.bmm(jacobian, residual.transpose(1, 2)).squeeze(-1)
            weighted = jacobian
            if exact is not None:
                bends = exact[:, None, None] & (output > 0)
                weighted = jacobian * torch.where(bends, target / output, 1)
            matrix.baddbmm_(weighted, jacobian.transpose(1, 2))
        return total / self.samples, slope / self.samples, matrix / self.samples

    def _jacobian(self) -> Tensor:
        """Slope of every sample's output in every parameter, ``[T, P, n]``, after a backward."""
        columns = [rule.jacobian() for rule in self.rules if isinstance(rule, LinearRule)]
        return torch.cat(columns, 1) if len(columns) > 1 else columns[0]


def _diagonal_blocks(matrix: Tensor, count: int) -> Tensor:
    """View ``[T, count, B, B]`` of the blocks on the diagonal of ``[T, count·B, count·B]``."""
    size = matrix.shape[-1] // count
    blocks = matrix.unflatten(2, (count, size)).unflatten(1, (count, size))
    diagonal: Tensor = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    return diagonal


class FunctionalEngine:
    """Loss and gradient of T trials of a module that is not a chain, by ``vmap`` over autograd.

    Slower than the engines for chains, but right for every module that ``torch.func`` can batch.
    Where trials share their samples, dropout and the like differ from trial to trial.

    Shapes: x ``[S, N, ...]``, y ``[S, N, ...]``, with S = T where each trial has different ones
    and S = 1 where they share.
    """

    name = "torch.func"

    def __init__(self, template: Template, loss: Loss, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

        def one_loss(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return loss.mean(template.output(values, x), y)

        self._loss, self._slope = one_loss, torch.func.grad_and_value(one_loss)

    def loss(self, values: Tensor, index: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the loss ``[T]`` of the trials ``index`` with these values ``[T, P]``."""
        with torch.no_grad():
            result: Tensor = self._batched(self._loss, values, index, rows)
        return result

    def loss_and_gradient(
        self, values: Tensor, index: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return loss ``[T]`` and gradient ``[T, P]``, of all samples or of rows ``[T, n]``."""
        gradient, loss = self._batched(self._slope, values, index, rows)
        return loss, gradient

    def _batched(
        self, function: Callable[..., Any], values: Tensor, index: Tensor, rows: Tensor | None
    ) -> Any:
        x, x_axis = self._chosen(self._x, index, rows)
        y, y_axis = self._chosen(self._y, index, rows)
        batched = torch.func.vmap(function, in_dims=(0, x_axis, y_axis), randomness="different")
        return batched(values, x, y)

    @staticmethod
    def _chosen(data: Tensor, index: Tensor, rows: Tensor | None) -> tuple[Tensor, int | None]:
        """Return the samples of each trial, and the axis of trials if they do not share samples."""
        if rows is not None:
            trial = index[:, None] if len(data) > 1 else torch.zeros_like(index)[:, None]
            return data[trial, rows], 0
        return (data[index], 0) if len(data) > 1 else (data[0], None)
