"""Second-order solvers, which train until the gradient vanishes, and the curvature there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from mahalens.errors import IllConditionedWarning, InputError, SingularCovarianceError
from mahalens.geometry import Gaussian
from mahalens.nn import Chain
from mahalens.train.objective import MeanSquaredError, Objective
from mahalens.train.solver import History, ShownSolver, StackedSolver, Status
from mahalens.train.stack import TrialStack

_Vector = NDArray[np.float64]

_FEW = 64
"""Up to here the whole Hessian is made, which is exact and quick."""


def curves_down(objective: Objective, stack: TrialStack, asked: Tensor) -> Tensor:
    """Return which of the trials ``asked`` ``[A]`` have a direction of negative curvature.

    The result ``[A]`` is false for the others.
    """
    down = torch.zeros_like(asked)
    eps = torch.finfo(stack.values.dtype).eps
    for trial in asked.nonzero().flatten().tolist():
        which = trial if stack.index is None else int(stack.index[trial])
        low, high = curvature_range(objective, stack.values[trial], which)
        down[trial] = low < -(eps**0.5) * abs(high)
    return down


def curvature_range(objective: Objective, values: Tensor, trial: int = 0) -> tuple[float, float]:
    """Return the smallest and largest eigenvalue of the Hessian of one trial's loss.

    For many parameters by Lanczos iteration, which only multiplies the Hessian with vectors, at
    the cost of a few hundred gradients. The smallest eigenvalue is then exact to about 1e-4 of
    the largest, and never too low: a negative one does exist.

    Shapes: values ``[P]``.
    """
    model = objective.model
    if isinstance(model, Chain):
        model = _smooth(model)
        module: nn.Module = model.build(dtype=values.dtype, device=values.device)
    else:
        module = model.module
    x, y = objective.data_of(trial)

    def loss(point: Tensor) -> Tensor:
        tensors = TrialStack(model, point[None]).tensors()
        parameters = {name: tensor[0] for name, tensor in tensors.items()}
        return objective.kind.mean(torch.func.functional_call(module, parameters, (x,)), y)

    # The Hessian is symmetric: pulling a vector back through the gradient multiplies it.
    pull_back = torch.func.vjp(torch.func.grad(loss), values)[1]

    def product(vector: _Vector) -> _Vector:
        (image,) = pull_back(torch.from_numpy(vector).to(values))
        result: _Vector = image.detach().cpu().double().numpy()
        return result

    width = len(values)
    if width <= _FEW:
        ends = np.linalg.eigvalsh(np.stack([product(unit) for unit in np.eye(width)]))
        return float(ends[0]), float(ends[-1])
    high = _largest(product, width)
    # Negated and shifted: Lanczos stops at a share of the eigenvalue it looks for, and would
    # never stop for one near 0.
    return high - _largest(lambda vector: high * vector - product(vector), width), high


def _smooth(chain: Chain) -> Chain:
    """Return the same function without ``Abs`` or ``Neg`` before ``Norm``, which squares them away.

    Autograd takes the bend of ``|x|²`` for 0 where x is 0, and would miss a unit to be woken.
    """
    following = [*chain.layers[1:], None]
    layers = [
        layer
        for layer, after in zip(chain.layers, following, strict=True)
        if layer.kind not in ("Abs", "Neg") or after is None or after.kind != "Norm"
    ]
    return Chain(chain.inputs, tuple(layers))


def _largest(product: Callable[[_Vector], _Vector], width: int) -> float:
    """Largest eigenvalue of the symmetric matrix with these products."""
    operator = LinearOperator(
        (width, width), matvec=lambda vector: product(vector.reshape(-1)), dtype=np.float64
    )
    # A fixed first vector: equal calls give equal answers.
    first = np.random.default_rng(0).standard_normal(width)
    try:
        largest = eigsh(
            operator,
            k=1,
            which="LA",
            v0=first,
            ncv=40,
            tol=1e-4,
            maxiter=100,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence:
        return float("nan")
    return float(largest[0])


FEW_PARAMETERS = 600
"""Up to here a P x P matrix per trial is cheap, and Levenberg-Marquardt is the faster method."""

_DAMPING_START = 1e-2
_DAMPING_LEAST = 1e-20  # less would change nothing, and 0 could never grow again
_DAMPING_MOST = 1e16
_SLOW = 1e-2  # a step is slow if it gains less than this share of the loss
_PATIENCE = 30  # slow steps in a row before the exact Hessian takes over
_KICKS = 12  # lengths tried along a direction of negative curvature

_SUFFICIENT = 1e-4  # Armijo: this share of the decrease that the slope promises
_CURVATURE = 0.9  # weak Wolfe: the slope must have lost this share
_MOST_TRIES = 30  # points tried along one line


class WhitenedInputs:
    """The map of a first layer to the inputs ``z = L⁻¹ (x - m)`` and back, from samples ``[N, D]``.

    m and ``L Lᵀ`` are mean and covariance of the samples. ``W x + b = (W L) z + (W m + b)``: the
    function is the same, but without the badly scaled directions of x that make second-order
    methods crawl. A layer without bias cannot be shifted: then m is 0 and ``L Lᵀ`` the second
    moment about 0 (``centred=False``).

    >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 4.0], [2.0, -4.0]])
    >>> chain = Chain.parse("Linear(3), ReLU, Norm", inputs=2)
    >>> trials, coordinates = TrialStack.from_seeds(chain, [0]), WhitenedInputs(x)
    >>> whitened = coordinates.enter(trials)
    >>> torch.allclose(whitened(coordinates.inputs(x)), trials(x), atol=1e-6)
    True
    """

    def __init__(self, x: Tensor, *, centred: bool = True) -> None:
        self.centred = centred
        with warnings.catch_warnings():
            # Any invertible map will do as coordinates: a rough one only costs steps.
            warnings.simplefilter("ignore", IllConditionedWarning)
            try:
                self.gaussian = self._spread(x, 0.0)
            except SingularCovarianceError:
                self.gaussian = self._spread(x, 1e-3)

    def _spread(self, x: Tensor, ridge: float) -> Gaussian:
        if self.centred:
            return Gaussian.from_data(x, ridge=ridge)
        moment = x.T @ x / len(x)
        moment += ridge * moment.diagonal().mean() * torch.eye(len(moment)).to(moment)
        return Gaussian.from_covariance(x.new_zeros(x.shape[1]), moment)

    @staticmethod
    def fit(chain: Chain) -> bool:
        """Return whether a chain begins with the ``Linear`` that this needs."""
        return chain.layers[0].kind == "Linear"

    def inputs(self, x: Tensor) -> Tensor:
        """Return samples ``[N, D]`` in whitened coordinates."""
        return self.gaussian.whiten(x, kind="cholesky")

    def enter(self, stack: TrialStack) -> TrialStack:
        """Return the same trials acting on whitened inputs."""
        tensors = self._first(stack)
        weight = tensors["0.weight"]
        tensors["0.weight"] = weight @ self.gaussian.factor
        if self.centred:
            tensors["0.bias"] = tensors["0.bias"] + weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def leave(self, stack: TrialStack) -> TrialStack:
        """Return trials on whitened inputs as they act on the original ones."""
        tensors = self._first(stack)
        factor = self.gaussian.factor.expand(len(stack), -1, -1)
        weight = torch.linalg.solve_triangular(factor, tensors["0.weight"], upper=False, left=False)
        tensors["0.weight"] = weight
        if self.centred:
            tensors["0.bias"] = tensors["0.bias"] - weight @ self.gaussian.mean
        return TrialStack.from_tensors(stack.chain, tensors)

    def _first(self, stack: TrialStack) -> dict[str, Tensor]:
        tensors = stack.tensors()
        if self.centred and "0.bias" not in tensors:
            raise InputError(f"the chain {stack.chain} has no bias in its first layer to shift")
        return dict(tensors)


class _ConvergingSolver(StackedSolver):
    """A solver that ends trials by what their gradient and residual look like."""

    @property
    def scale(self) -> Tensor:
        """The unit of the loss, ``[A]`` or ``[]``: the mean square of the targets, 1 for labels."""
        y, trials = self.objective.y, self.objective.trials
        if not y.dtype.is_floating_point:
            return self.values.new_ones(())
        if trials is not None:
            y = torch.stack([self.objective.data_of(trial)[1] for trial in range(trials)])
            return y.flatten(1).square().mean(1)[self.active]
        mean: Tensor = y.square().mean()
        return mean

    def is_zero(self, loss: Tensor) -> Tensor:
        """Return whether the residual is below √eps of the target: perfect but for rounding."""
        return loss <= torch.finfo(loss.dtype).eps * self.scale

    def is_stationary(self, loss: Tensor, slope: Tensor) -> Tensor:
        """Return whether ``Jᵀr/N`` ``[A, P]`` is 0 within √eps of the residual.

        In whitened coordinates the columns of J have lengths of at most about √N: this bounds the
        cosine between the residual and any change of it that the parameters can make.
        """
        tolerance: Tensor = torch.finfo(loss.dtype).eps ** 0.5 * loss.sqrt()
        return slope.abs().amax(1) <= tolerance

    def finish_first(self, verdicts: list[tuple[Tensor, Status]], loss: Tensor) -> None:
        """End each running trial by the first of the verdicts ``[A]`` that is true for it.

        At the limit, all others end too.
        """
        if self.epoch == self.limit:
            zero = self.is_zero(loss)
            verdicts = [*verdicts, (zero, Status.ZERO_RESIDUAL), (~zero, Status.UNCONVERGED)]
        verdict = torch.full((len(self.active),), Status.RUNNING.code)
        for holds, status in reversed(verdicts):
            verdict[holds.cpu()] = status.code
        for status in Status:
            if status is not Status.RUNNING:
                ended = verdict == status.code
                self.finish(ended, status, loss, self.epoch)
                loss, verdict = loss[~ended.to(loss.device)], verdict[~ended]


class LevenbergMarquardt(_ConvergingSolver):
    """Batched Levenberg-Marquardt that ends in true minima, for few parameters.

    Each step solves ``(C + λ diag|C|) δ = -Jᵀr/N`` by Cholesky and takes δ if the loss falls. λ
    shrinks by ``max(1/3, 1 - (2ρ-1)³)`` after a good step, ρ being the actual over the predicted
    decrease, and grows by 2, 4, 8, ... after bad ones (Nielsen, IMM-REP-1999-05). C starts as the
    Gauss-Newton matrix ``JᵀJ/N``, which is exact where the residual goes to 0. A trial that slows
    down at a residual above 0, in a valley or near a saddle, changes to the exact Hessian and
    finishes with Newton's speed.

    A trial ends where its residual is 0 within rounding, or where its gradient is 0 and no
    direction curves down (a local minimum). At a saddle it goes on down the most negative
    curvature if the Hessian is written out for its chain, and ends otherwise. Where no step helps
    although the gradient is not 0 it has stalled. Every step starts from the rows alone: a
    restored solver repeats it exactly.
    """

    objective: MeanSquaredError

    def __init__(self, objective: MeanSquaredError, start: TrialStack, steps: int) -> None:
        super().__init__(objective, start, steps)
        new = start.values.new_zeros(len(start))
        self.rows |= {
            "damping": new + _DAMPING_START,
            "growth": new + 2,
            "rejected": new.clone(),
            "slow": new.clone(),
            "exact": torch.zeros_like(new, dtype=torch.bool),
        }

    def advance(self) -> None:
        """Take one step with every running trial."""
        rows, stack = self.rows, self.running()
        exact = rows["exact"]
        loss, slope, matrix = self.objective.curvature(stack, exact if exact.any() else None)
        self.epoch += 1
        self.record(self.epoch, loss)

        flat = self.is_stationary(loss, slope) & ~self.is_zero(loss)
        rooted = flat & (exact | (not self.objective.has_exact_curvature))
        moved, predicted = self._newton(stack, slope, matrix)
        saddle = self._leave_saddles(stack, loss, matrix, rooted & exact, moved)
        new_loss = self._loss(moved, self.active)
        better = new_loss < loss  # false where the loss is not finite
        gain = (loss - new_loss) / predicted.clamp_min(torch.finfo(loss.dtype).tiny)
        shrink = (1 - (2 * gain.clamp(0, 1) - 1) ** 3).clamp_min(1 / 3)
        slow = ~self.is_zero(loss) & ~(loss - new_loss > _SLOW * loss)
        damping, growth = rows["damping"], rows["growth"]
        rows["values"] = torch.where(better[:, None], moved, stack.values)
        eased = (damping * shrink).clamp_min(_DAMPING_LEAST)
        rows["damping"] = torch.where(better, eased, damping * growth)
        rows["growth"] = torch.where(better, 2.0, 2 * growth)
        rows["rejected"] = torch.where(better, 0.0, rows["rejected"] + 1)
        if self.objective.has_exact_curvature:
            rows["slow"] = torch.where(slow, rows["slow"] + 1, 0.0)
            rows["exact"] = exact | (rows["slow"] >= _PATIENCE) | flat

        best = torch.where(better, new_loss, loss)
        escaped = saddle & better
        saddle |= curves_down(self.objective, stack, rooted & ~exact)
        self._end(best, rooted & ~escaped, saddle)

    def _loss(self, values: Tensor, index: Tensor) -> Tensor:
        """Loss by the engine that computes the curvature: another would round differently."""
        return self.objective.by_torch.loss(values, index)

    def _newton(self, stack: TrialStack, slope: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the damped step leads, and the decrease it predicts."""
        size = matrix.diagonal(dim1=-2, dim2=-1).abs()  # [A, P]
        size = size.maximum(1e-6 * size.amax(1, keepdim=True))
        damped = matrix + torch.diag_embed(self.rows["damping"][:, None] * size)
        factor, failure = torch.linalg.cholesky_ex(damped)
        step = -torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        solved = (failure == 0) & step.isfinite().all(1)
        step = torch.where(solved[:, None], step, 0)
        bend = torch.bmm(matrix, step.unsqueeze(-1)).squeeze(-1)
        return stack.values + step, -((2 * slope + bend) * step).sum(1)

    def _leave_saddles(
        self, stack: TrialStack, loss: Tensor, matrix: Tensor, rooted: Tensor, moved: Tensor
    ) -> Tensor:
        """Find the rooted trials on a saddle and write a lower point for them in ``moved``."""
        saddle = torch.zeros_like(rooted)
        if not rooted.any():
            return saddle
        # Trial by trial and in float64: one matrix that cannot be decomposed must not end the rest.
        chosen, directions = [], []
        for trial in rooted.nonzero().flatten().tolist():
            try:
                values, vectors = torch.linalg.eigh(matrix[trial].double())
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                continue
            if values[0] < -(torch.finfo(loss.dtype).eps ** 0.5) * values[-1].abs():
                chosen.append(trial)
                directions.append(vectors[:, 0])
        if not chosen:
            return saddle
        index = torch.tensor(chosen, device=loss.device)
        direction = torch.stack(directions).to(loss.dtype)
        saddle[index] = True
        base, lowest = stack.values[index], loss[index]
        for power in range(_KICKS):
            for sign in (1, -1):
                length = sign * base.norm(dim=1, keepdim=True) / 2**power
                point = base + length * direction
                new = self._loss(point, self.active[index.cpu()])
                lower = new < lowest
                lowest = torch.where(lower, new, lowest)
                moved[index[lower]] = point[lower]
        return saddle

    def _end(self, loss: Tensor, rooted: Tensor, saddle: Tensor) -> None:
        eps = torch.finfo(loss.dtype).eps
        zero = self.is_zero(loss)
        exhausted = (self.rows["rejected"] >= 3) | (loss <= (4 * eps) ** 2 * self.scale)
        self.finish_first(
            [
                (~loss.isfinite(), Status.NON_FINITE),
                (zero & exhausted, Status.ZERO_RESIDUAL),
                (rooted & saddle, Status.SADDLE),
                (rooted, Status.LOCAL_MINIMUM),
                (self.rows["damping"] > _DAMPING_MOST, Status.STALLED),
            ],
            loss,
        )


class LBFGS(_ConvergingSolver):
    """Batched L-BFGS (Liu and Nocedal 1989) with a bisecting weak-Wolfe line search.

    For many parameters. Every :meth:`advance` evaluates one point per running trial, all in one
    pass over the data: where the point is good, the trial takes it and turns to a new direction;
    the others halve or double their step meanwhile. No trial waits for another's line search. The
    line search is that of Lewis and Overton (2013), which also copes with the kinks that ReLU
    distances have at 0. ``memory`` is the number of steps remembered.

    Meant for sample-whitened coordinates (see :class:`mahalens.train.WhitenedInputs`): on badly
    scaled inputs it stalls.
    """

    def __init__(
        self, objective: Objective, start: TrialStack, steps: int, *, memory: int = 20
    ) -> None:
        super().__init__(objective, start, steps)
        if memory < 1:
            raise InputError(f"a memory of {memory} steps; give at least 1")
        trials, width = start.values.shape
        new = start.values.new_zeros
        self.rows |= {
            "loss": new(trials) + torch.inf,
            "gradient": new(trials, width),
            "direction": new(trials, width),
            "slope": new(trials),
            "step": new(trials),
            "low": new(trials),
            "high": new(trials) + torch.inf,
            "tries": new(trials),
            "s": new(trials, memory, width),
            "y": new(trials, memory, width),
            "rho": new(trials, memory),
            "updates": torch.zeros(trials, dtype=torch.int64, device=start.values.device),
        }

    def advance(self) -> None:
        """Evaluate one point of every running trial's line search."""
        rows = self.rows
        point = rows["values"] + rows["step"][:, None] * rows["direction"]
        moved = TrialStack(self.objective.model, point, index=self.active)
        loss, gradient = self.objective.loss_and_gradient(moved)
        first = self.epoch == 0
        self.epoch += 1

        slope = (gradient * rows["direction"]).sum(1)
        enough = loss <= rows["loss"] + _SUFFICIENT * rows["step"] * rows["slope"]
        flat = slope >= _CURVATURE * rows["slope"]
        accepted = enough & flat & loss.isfinite()
        if first:
            accepted = torch.ones_like(accepted)
        self._bracket(enough & loss.isfinite())
        rows["tries"] += 1
        self._accept(accepted, point, loss, gradient, learn=not first)
        self.record(self.epoch, rows["loss"])
        self._end(first & ~loss.isfinite())

    def _bracket(self, enough: Tensor) -> None:
        """Halve the step where the loss did not fall enough, lengthen it where it fell too well."""
        rows = self.rows
        rows["high"] = torch.where(enough, rows["high"], rows["step"])
        rows["low"] = torch.where(enough, rows["step"], rows["low"])
        middle = (rows["low"] + rows["high"]) / 2
        rows["step"] = torch.where(rows["high"].isinf(), 2 * rows["step"], middle)

    def _accept(
        self, accepted: Tensor, point: Tensor, loss: Tensor, gradient: Tensor, *, learn: bool
    ) -> None:
        """Move the accepted trials to their point and choose their next direction."""
        rows = self.rows
        # A line that leads nowhere: forget the history and go down the gradient instead.
        lost = ~accepted & (rows["tries"] >= _MOST_TRIES) & (rows["updates"] > 0)
        turning = (accepted | lost).nonzero().squeeze(1)
        if not len(turning):
            return
        if learn:
            self._learn(accepted, point, gradient)
        rows["values"] = torch.where(accepted[:, None], point, rows["values"])
        rows["gradient"] = torch.where(accepted[:, None], gradient, rows["gradient"])
        rows["loss"] = torch.where(accepted, loss, rows["loss"])
        rows["updates"][lost] = 0
        rows["rho"][lost] = 0

        direction = self._direction(turning)
        slope = (direction * rows["gradient"][turning]).sum(1)
        uphill = ~(slope < 0)
        direction[uphill] = -rows["gradient"][turning][uphill]
        slope = (direction * rows["gradient"][turning]).sum(1)
        fresh = rows["updates"][turning] == 0
        length = direction.norm(dim=1).clamp_min(torch.finfo(direction.dtype).tiny)
        rows["direction"][turning] = direction
        rows["slope"][turning] = slope
        rows["step"][turning] = torch.where(fresh, (1 / length).clamp_max(1), 1.0)
        rows["low"][turning] = 0
        rows["high"][turning] = torch.inf
        rows["tries"][turning] = 0

    def _learn(self, accepted: Tensor, point: Tensor, gradient: Tensor) -> None:
        """Store the step and the change of gradient of the accepted trials."""
        rows = self.rows
        s, y = point - rows["values"], gradient - rows["gradient"]
        product = (s * y).sum(1)
        useful = accepted & (product > torch.finfo(s.dtype).eps * y.square().sum(1))
        index = useful.nonzero().squeeze(1)
        place = rows["updates"][index] % rows["s"].shape[1]
        rows["s"][index, place] = s[index]
        rows["y"][index, place] = y[index]
        rows["rho"][index, place] = 1 / product[index]
        rows["updates"][index] += 1

    def _direction(self, trials: Tensor) -> Tensor:
        """``-H g`` of these trials by the two-loop recursion; unused places have rho 0."""
        rows = self.rows
        memory = rows["s"].shape[1]
        updates = rows["updates"][trials]
        q = -rows["gradient"][trials]
        alphas = []
        newest_first = [(updates - 1 - age) % memory for age in range(memory)]
        for place in newest_first:
            alpha = rows["rho"][trials, place] * (rows["s"][trials, place] * q).sum(1)
            q -= alpha[:, None] * rows["y"][trials, place]
            alphas.append(alpha)
        y = rows["y"][trials, newest_first[0]]
        rho = rows["rho"][trials, newest_first[0]]
        scale = 1 / (rho * y.square().sum(1))
        q *= torch.where(rho > 0, scale, 1.0)[:, None]
        for place, alpha in zip(reversed(newest_first), reversed(alphas), strict=True):
            beta = rows["rho"][trials, place] * (rows["y"][trials, place] * q).sum(1)
            q += (alpha - beta)[:, None] * rows["s"][trials, place]
        return q

    def _end(self, broken: Tensor) -> None:
        rows = self.rows
        loss = rows["loss"]
        zero = self.is_zero(loss)
        stuck = (rows["tries"] >= _MOST_TRIES) & (rows["updates"] == 0)
        exhausted = loss <= (64 * torch.finfo(loss.dtype).eps) ** 2 * self.scale
        flat = ~zero & self.is_stationary(loss, rows["gradient"] / 2)
        self.finish_first(
            [
                (broken, Status.NON_FINITE),
                (zero & (stuck | exhausted), Status.ZERO_RESIDUAL),
                (curves_down(self.objective, self.running(), flat), Status.SADDLE),
                (flat, Status.LOCAL_MINIMUM),
                (stuck, Status.STALLED),
            ],
            loss,
        )


def _of_the_solver(name: str, doc: str) -> Any:
    """Return the property of :class:`Newton` that is an attribute of the solver inside."""
    return property(
        lambda newton: getattr(newton._solver, name),
        lambda newton, value: setattr(newton._solver, name, value),
        doc=doc,
    )


class Newton(ShownSolver):
    """Second-order training of all trials until they converge, in whitened coordinates.

    Levenberg-Marquardt up to ``few`` parameters per trial if the loss is the squared error of one
    number per sample, otherwise L-BFGS. A chain that begins with a ``Linear`` on shared samples is
    trained on inputs whitened by their sample covariance; weights go in and come out in the
    coordinates of x. Full batch only: a curvature estimated from a few samples does not converge.

    >>> chain = Chain.parse("Linear(2), Abs, Norm", inputs=2)
    >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    >>> objective = MeanSquaredError(chain, x, (x * torch.tensor([1.0, 0.1])).norm(dim=1))
    >>> newton = Newton(objective, TrialStack.from_seeds(chain, range(3)), steps=200)
    >>> while not newton.finished:
    ...     newton.advance()
    >>> newton.method, newton.statuses[0].value
    ('levenberg-marquardt', 'zero residual')
    """

    def __init__(
        self, objective: Objective, start: TrialStack, steps: int, *, few: int = FEW_PARAMETERS
    ) -> None:
        objective.check(start)
        self.objective = objective
        self._coordinates: WhitenedInputs | None = None
        inside, model = objective, objective.model
        if objective.trials is None and isinstance(model, Chain) and WhitenedInputs.fit(model):
            samples = objective.data_of(0)[0]
            self._coordinates = WhitenedInputs(samples, centred=model.layers[0].bias)
            inside = objective.moved(self._coordinates.inputs(samples))
            start = self._coordinates.enter(start)
        self._solver: StackedSolver
        is_small = start.values.shape[1] <= few
        if is_small and isinstance(inside, MeanSquaredError) and inside.has_curvature:
            self.method = "levenberg-marquardt"
            self._solver = LevenbergMarquardt(inside, start, steps)
        else:
            self.method = "l-bfgs"
            self._solver = LBFGS(inside, start, steps)

    @property
    def stack(self) -> TrialStack:
        """The trials in the coordinates of x."""
        inside = self._solver.stack
        return inside if self._coordinates is None else self._coordinates.leave(inside)

    epoch: int = _of_the_solver("epoch", "Steps done.")
    history: History = _of_the_solver("history", "Metrics recorded so far.")
    milestones: tuple[int, ...] = _of_the_solver(
        "milestones", "Steps at which metrics are wanted; every step pauses anyway."
    )
    finished: bool = _of_the_solver("finished", "Whether no trial is running.")
    statuses: list[Status] = _of_the_solver("statuses", "How each trial ended.")
    steps: Tensor = _of_the_solver("steps", "Steps ``[T]`` each trial took.")
    curve: tuple[Tensor, Tensor] = _of_the_solver("curve", "Steps ``[E]``, losses ``[E, T]``.")
    seconds: float = _of_the_solver("seconds", "Time spent so far.")

    @property
    def final_loss(self) -> Tensor:
        """Loss ``[T]`` of the weights of :attr:`stack`, the rounding of the way back included."""
        return self.objective.loss(self.stack)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Trials that have ended, trials in all, and the state of the others."""
        total = len(self._solver.codes)
        text = f"step {self.epoch}, {self.objective.label} {self._solver.recent_loss():.3g}"
        return total - len(self._solver.active), total, text

    def advance(self) -> None:
        """Take one step with every running trial."""
        self._solver.advance()

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume later, bit for bit."""
        return self._solver.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        self._solver.restore(state)
