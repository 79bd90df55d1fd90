"""The Gaussian study's data and starting points, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from mahalens.data import draw_gaussian, stream
from mahalens.geometry import Gaussian
from mahalens.init import kaiming_through_samples
from mahalens.nn import Chain, md_abs, md_relu, md_sigmoid
from mahalens.studies.gaussian.config import GaussianConfig
from mahalens.train import Adam, MeanSquaredError, Newton, TrialStack

CONTINUED_STEPS = 600
CHAINS = {"abs": md_abs, "relu": md_relu, "sigmoid": md_sigmoid}


@dataclass(frozen=True)
class Problem:
    """One Gaussian and one training set, shared by all trials and models.

    The Gaussian is kept in float64 on the CPU; x ``[N, D]`` and y ``[N]`` are in the dtype and on
    the device of the run. Distances are computed in float64 before they are rounded.
    """

    config: GaussianConfig
    gaussian: Gaussian
    x: Tensor
    y: Tensor
    engine: str = "auto"

    @classmethod
    def from_config(
        cls, config: GaussianConfig, gaussian: Gaussian | None = None, *, engine: str = "auto"
    ) -> Problem:
        """Draw the data of a run; the Gaussian too, unless the user's own is given."""
        if gaussian is None:
            gaussian = draw_gaussian(config.dim, stream(config.seed, "gaussian", config.dim))
        problem = cls(config, gaussian, torch.empty(0), torch.empty(0))
        x, y = problem._draw(config.samples, "train")
        return cls(config, gaussian, problem.cast(x), problem.cast(y), engine)

    def cast(self, tensor: Tensor) -> Tensor:
        """A tensor in the dtype and on the device of the run."""
        return tensor.to(self.config.device, getattr(torch, self.config.dtype))

    def _draw(self, n: int, *purpose: str | int) -> tuple[Tensor, Tensor]:
        x = self.gaussian.sample(n, stream(self.config.seed, *purpose))
        return x, self.gaussian.mahalanobis(x)

    def test_set(self, model: str, trial: int) -> tuple[Tensor, Tensor]:
        """New samples for one evaluation, with their distances in float64."""
        x, y = self._draw(self.config.test_samples, "test", model, trial)
        return self.cast(x), y

    def chain(self, model: str) -> Chain:
        """The architecture of a trained model."""
        return CHAINS[model](self.config.dim)

    def start(self, model: str) -> TrialStack:
        """The starting points of all trials: one draw of 2D rows a trial, shared by the models."""
        chain = self.chain(model)
        units = chain.layers[0].units
        x = self.x.to("cpu", torch.float64)
        draws = [
            kaiming_through_samples(x, 2 * self.config.dim, stream(self.config.seed, "start", t))
            for t in range(self.config.trials)
        ]
        weight = self.cast(torch.stack([weight[:units] for weight, _ in draws]))
        bias = self.cast(torch.stack([bias[:units] for _, bias in draws]))
        return TrialStack.from_tensors(chain, {"0.weight": weight, "0.bias": bias})

    def objective(self, chain: Chain) -> MeanSquaredError:
        """What the trials of a chain are trained for."""
        return MeanSquaredError(chain, self.x, self.y, engine=self.engine)

    def continued(self, stack: TrialStack) -> Newton:
        """A solver that goes on from where trials ended, to see in which basin they lie.

        It works in float64 on the samples before they were rounded: rounding them leaves a
        residual that would hide a perfect fit.
        """
        exact = Problem.from_config(
            msgspec.structs.replace(self.config, dtype="float64"),
            self.gaussian,
            engine=self.engine,
        )
        start = TrialStack(stack.chain, stack.values.double())
        return Newton(exact.objective(stack.chain), start, CONTINUED_STEPS)

    def solver(self, model: str) -> Adam | Newton:
        """The solver that trains all trials of a model."""
        config, chain, start = self.config, self.chain(model), self.start(model)
        objective = self.objective(chain)
        if config.solver == "newton":
            return Newton(objective, start, config.epochs)
        return Adam(objective, start, config.epochs, lr=config.learning_rate, betas=config.betas)
