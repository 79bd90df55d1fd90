"""What a run of the Gaussian study is told, and how that differs from the published protocol."""

from __future__ import annotations

from typing import Literal

import msgspec

from mahalens.errors import InputError
from mahalens.studies.options import check_count

MODELS = {
    "abs": "MD_Abs: Linear(D), Abs, Norm",
    "relu": "MD_ReLU: Linear(2D), ReLU, Norm",
    "sigmoid": "MD_Sigmoid: Linear(2D), Sigmoid, Norm",
    "ground-truth": "MD_Abs with analytic weights, not trained",
}
SOLVERS = {
    "adam": "the published protocol: Adam, lr 1e-3, betas (0.9, 0.99), full batch",
    "newton": "second order until convergence, from the same starting points",
}
DTYPES = ("float32", "float64")

PUBLISHED_EPOCHS = {2: 10_000, 10: 50_000, 100: 250_000}
PUBLISHED_SAMPLES = {2: 1_000, 10: 1_000, 100: 10_000}
PUBLISHED_TRIALS = 20
NEWTON_STEPS = 2_000


class GaussianConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides the numbers of a run. ``gaussian`` names the user's file, if any."""

    dim: int
    trials: int
    epochs: int
    samples: int
    solver: Literal["adam", "newton"]
    models: tuple[str, ...]
    dtype: Literal["float32", "float64"]
    device: str
    seed: int
    gaussian: str | None = None
    test_samples: int = 1_000
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)

    def __post_init__(self) -> None:
        for name in ("dim", "trials", "epochs", "samples", "test_samples"):
            least = 2 if name == "samples" else 1  # one sample has no spread to whiten
            check_count(name, getattr(self, name), least)
        check_count("seed", self.seed, 0, 2**63 - 1)
        if not self.models:
            raise InputError(f"--models is empty: give some of {', '.join(MODELS)}")
        for model in self.models:
            if model not in MODELS:
                raise InputError(f"--models {model}: unknown model; known: {', '.join(MODELS)}")
        if len(set(self.models)) < len(self.models):
            raise InputError(f"--models {','.join(self.models)}: a model is named twice")

    @classmethod
    def with_defaults(
        cls,
        *,
        dim: int = 2,
        trials: int | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        solver: str = "adam",
        models: tuple[str, ...] = tuple(MODELS),
        dtype: str | None = None,
        device: str = "cpu",
        seed: int = 0,
        gaussian: str | None = None,
    ) -> GaussianConfig:
        """Fill in what is not given: the published protocol for this dimension and solver.

        Dimensions that were not published take the figures of the next larger one that was.
        Newton runs in float64 by default, because it converges further than float32 can show.
        """
        check_count("dim", dim, 1)
        if solver not in SOLVERS:
            raise InputError(f"--solver {solver}: unknown; known: {', '.join(SOLVERS)}")
        if dtype is not None and dtype not in DTYPES:
            raise InputError(f"--dtype {dtype}: unknown; known: {', '.join(DTYPES)}")
        like = next((d for d in PUBLISHED_EPOCHS if dim <= d), max(PUBLISHED_EPOCHS))
        newton = solver == "newton"
        longest = NEWTON_STEPS if newton else PUBLISHED_EPOCHS[like]
        return cls(
            dim=dim,
            trials=PUBLISHED_TRIALS if trials is None else trials,
            epochs=longest if epochs is None else epochs,
            samples=max(PUBLISHED_SAMPLES[like], 10 * dim) if samples is None else samples,
            solver="newton" if newton else "adam",
            models=models,
            dtype="float64" if dtype == "float64" or (newton and dtype is None) else "float32",
            device=device,
            seed=seed,
            gaussian=gaussian,
        )

    @property
    def trained_models(self) -> tuple[str, ...]:
        """The models that are trained, in order."""
        return tuple(model for model in self.models if model != "ground-truth")

    def deviations(self) -> list[str]:
        """What differs from the published protocol, one sentence each; none means published."""
        found = []

        def compare(name: str, value: object, published: object) -> None:
            if value != published:
                found.append(f"{name}: {value} instead of {published}")

        if self.dim not in PUBLISHED_EPOCHS:
            found.append(f"dim: {self.dim} instead of 2, 10 or 100")
        compare("solver", self.solver, "adam")
        compare("dtype", self.dtype, "float32")
        compare("trials", self.trials, PUBLISHED_TRIALS)
        if self.dim in PUBLISHED_EPOCHS:
            if self.solver == "adam":
                compare("epochs", self.epochs, PUBLISHED_EPOCHS[self.dim])
            compare("samples", self.samples, PUBLISHED_SAMPLES[self.dim])
        for field in msgspec.structs.fields(self):  # no option of the command line sets these
            if field.name in ("test_samples", "learning_rate", "betas"):
                compare(field.name, getattr(self, field.name), field.default)
        if missing := [m for m in MODELS if m not in self.models]:
            found.append(f"models: without {', '.join(missing)}")
        if self.gaussian is not None:
            found.append(f"gaussian: from {self.gaussian} instead of drawn as in source 000")
        return found
