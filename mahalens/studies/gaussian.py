"""The Gaussian study: networks trained to output the Mahalanobis distance of a Gaussian.

The experiment of *Results: Learning Mahalanobis Distance with Neural Networks*. One Gaussian and
one training set are shared by all trials and models; the learned weights are read against theory:
hyperplanes through the mean, ReLU units in mirrored pairs, rows that whiten.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec

from mahalens import auditing, data, init, nn, train
from mahalens.errors import IllConditionedWarning, InputError, RunFolderError
from mahalens.studies import torch
from mahalens.studies.claims import (
    AboveChance,
    Average,
    Both,
    Claim,
    Lower,
    TrialShare,
    claims_from,
)
from mahalens.studies.folder import GAUSSIAN
from mahalens.studies.plots import AllMetrics, Curves, Diagonal, Plane
from mahalens.studies.study import (
    Chosen,
    Config,
    Job,
    Measures,
    Metric,
    Model,
    Option,
    PublishedValue,
    Results,
    Study,
    jobs_of,
    models_option,
)

if TYPE_CHECKING:
    from torch import Tensor

    from mahalens.geometry import Gaussian
    from mahalens.studies.run import Context
    from mahalens.train import Adam, Newton, TrialStack

# --- Models -----------------------------------------------------------------------------------

MODELS = {
    "abs": Model("MD_Abs", "MD_Abs: Linear(D), Abs, Norm", "#0072B2"),
    "relu": Model("MD_ReLU", "MD_ReLU: Linear(2D), ReLU, Norm", "#D55E00"),
    "sigmoid": Model("MD_Sigmoid", "MD_Sigmoid: Linear(2D), Sigmoid, Norm", "#009E73"),
    "ground-truth": Model("Ground truth", "MD_Abs with analytic weights, not trained", "#333333"),
}
DISTANCES = ("abs", "relu")
"""The models that can be exact distances, and so have a perfect fit to find."""

# --- Options ----------------------------------------------------------------------------------

SOLVERS = {
    "adam": "the published protocol: Adam, lr 1e-3, betas (0.9, 0.99), full batch",
    "newton": "second order until convergence, from the same starting points",
}
PUBLISHED_EPOCHS = {2: 10_000, 10: 50_000, 100: 250_000}
PUBLISHED_SAMPLES = {2: 1_000, 10: 1_000, 100: 10_000}
NEWTON_STEPS = 2_000
CONTINUED_STEPS = 600
SMALL_FLOPS = 1e8


def _like(chosen: Chosen) -> int:
    """Return the published dimension that a run is like: the next larger one."""
    return next((d for d in PUBLISHED_EPOCHS if chosen["dim"] <= d), max(PUBLISHED_EPOCHS))


def _epochs(chosen: Chosen) -> int:
    return NEWTON_STEPS if chosen["solver"] == "newton" else PUBLISHED_EPOCHS[_like(chosen)]


def _samples(chosen: Chosen) -> int:
    return max(PUBLISHED_SAMPLES[_like(chosen)], 10 * int(chosen["dim"]))


class GaussianConfig(Config, frozen=True, kw_only=True):
    """Everything that decides the numbers of a run.

    Dimensions that were not published take the epochs and samples of the next larger one that was.
    """

    gaussian: Annotated[
        str | None,
        Option(
            "Your mean and covariance, .npz or .json.",
            published=None,
            show=lambda file: "drawn as published" if file is None else f"from {file}",
            metavar="FILE",
            file=True,
        ),
    ] = None
    dim: Annotated[
        int, Option("Dimensions: 2, 10, 100 as published, or any.", 2, shown="2", least=1)
    ]
    solver: Annotated[
        Literal["adam", "newton"],
        Option(
            "Adam as published, or second order.",
            "adam",
            published="adam",
            choices=SOLVERS,
        ),
    ]
    dtype: Annotated[
        Literal["float32", "float64"],
        Option(
            "Type of all numbers.",
            # Newton converges further than float32 can show.
            lambda chosen: "float64" if chosen["solver"] == "newton" else "float32",
            published="float32",
            shown="float32; newton: float64",
            choices={"float32": "as published", "float64": "twice as precise"},
        ),
    ]
    trials: Annotated[int, Option("Trials of each model.", 20, published=20, least=1)]
    epochs: Annotated[
        int,
        Option(
            "Epochs of Adam, or most steps of Newton.",
            _epochs,
            published=_epochs,
            shown="as published; newton: 2000",
            least=1,
        ),
    ]
    samples: Annotated[
        int,
        # One sample has no spread to whiten.
        Option("Training samples.", _samples, published=_samples, shown="as published", least=2),
    ]
    models: Annotated[tuple[str, ...], models_option(MODELS)]
    test_samples: Annotated[int, Option("", 1_000, published=1_000, least=1, flag=False)] = 1_000
    learning_rate: Annotated[float, Option("", 1e-3, published=1e-3, flag=False)] = 1e-3
    betas: Annotated[
        tuple[float, float], Option("", (0.9, 0.99), published=(0.9, 0.99), flag=False)
    ] = (0.9, 0.99)

    @classmethod
    def with_defaults(cls, *, published: bool = False, **values: Any) -> Self:
        """Fill in the options that are not given; the dimension is that of the user's Gaussian."""
        if values.get("gaussian") is not None:
            values["gaussian"] = str(values["gaussian"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said again, once, when the run begins
                dim = data.load_gaussian(values["gaussian"]).dim
            if values.get("dim") not in (None, dim):
                raise InputError(
                    f"{values['gaussian']}: has {dim} dimensions, but --dim is {values['dim']}; "
                    "leave --dim out or make them equal"
                )
            values["dim"] = dim
        return super().with_defaults(published=published, **values)

    def _deviations(self) -> dict[str, str]:
        sentences = super()._deviations()
        if self.dim in PUBLISHED_EPOCHS:
            return sentences
        # Nothing was published that epochs and samples could be compared with.
        rest = {n: text for n, text in sentences.items() if n not in ("epochs", "samples")}
        return {"dim": f"dim: {self.dim} instead of 2, 10 or 100", **rest}


# --- Metrics ----------------------------------------------------------------------------------

METRICS: dict[str, Metric] = {
    "train_mse": Metric("Final training MSE", "Loss of the last epoch or final weights.", log=True),
    "test_mse": Metric("MSE on new data", "Loss on 1,000 samples drawn anew.", log=True),
    "late_decrease": Metric(
        "Loss still falling",
        "Share of the loss that went in the last tenth of the epochs (Adam): near 0 once training "
        "has converged. Losses below 0.1 % of the targets' variance count as 0.1 %.",
        "relative",
        better=None,
    ),
    "mirrored_pairs": Metric(
        "Mirrored pairs",
        "Pairs of units with opposite weights (cosine below -0.999); each unit pairs once.",
        "pairs",
        better=None,
    ),
    "unique_units": Metric(
        "Units after deduplication",
        "Units left when one of each mirrored pair is dropped.",
        "units",
        better=None,
    ),
    "mean_distance": Metric(
        "Hyperplane to mean",
        "|w·μ + b| / ‖w‖, averaged over the units: how far the hyperplanes miss the mean.",
        "input units",
        log=True,
    ),
    "mean_distance_spread": Metric(
        "Hyperplane to mean, in spreads",
        "|w·μ + b| / √(wᵀΣw), averaged over the units: the same in standard deviations of the "
        "data along the unit's normal.",
        "spreads",
        log=True,
    ),
    "sphericity": Metric(
        "Sphericity norm",
        "‖M/d̄ − I‖_F with M = WΣWᵀ and d̄ its mean diagonal, on the deduplicated rows; "
        "0 means that the layer whitens.",
        log=True,
    ),
    "row_cosine": Metric(
        "Rows against eigenvectors",
        "Mean |cosine| of weight rows and true eigenvectors under the best one-to-one matching.",
        better="high",
    ),
    "row_eigenvalue_error": Metric(
        "Eigenvalue error, row by row",
        "Mean |1/‖wᵢ‖² − λ| / λ over the same matching.",
        "relative",
        log=True,
    ),
    "wnorm_precision_distance": Metric(
        "‖W_normᵀW_norm − Σ⁻¹‖_F",
        "The source's comparison with unit rows; the true whitening does not score 0 either.",
        better=None,
        log=True,
    ),
    "gram_precision_error": Metric(
        "Precision error of WᵀW",
        "‖c WᵀW − Σ⁻¹‖_F / ‖Σ⁻¹‖_F with c = 1 (ReLU: 1/2, each unit sees half the space).",
        "relative",
        log=True,
    ),
    "gram_eigenvalue_error": Metric(
        "Eigenvalue error, from WᵀW",
        "Mean relative error of the covariance eigenvalues read off WᵀW, in order of size.",
        "relative",
        log=True,
    ),
    "gram_cosine": Metric(
        "Eigenvectors of WᵀW against the truth",
        "Mean |cosine| between the eigenvectors of WᵀW and the true ones, matched one-to-one.",
        better="high",
    ),
    "centre_error": Metric(
        "Centre read off the layer",
        "Mahalanobis distance of the least-squares solution of Wc = −b from the true mean.",
        "spreads",
        log=True,
    ),
    "dead_units": Metric("Dead units", "Units that are 0 on every training sample.", "units"),
}

# --- Claims -----------------------------------------------------------------------------------

RESULTS = "gaussian-results"
_ROWS_ARE_EIGENVECTORS = AboveChance("row_cosine", "abs", 0.9, "row_cosine_chance")

_WHITENS = TrialShare("sphericity", "abs", "below", 0.1)

CLAIMS = claims_from(
    RESULTS,
    *(
        Claim(
            f"{model}-beats-sigmoid",
            f"{MODELS[model].label} learns the distance better than MD_Sigmoid.",
            Lower("train_mse", model, "sigmoid"),
        )
        for model in DISTANCES
    ),
    Claim(
        "sigmoid-performs-badly",
        "MD_Sigmoid does not approximate the distance well: it leaves more than half of its "
        "variance unexplained.",
        Average("test_mse", "sigmoid", "above", 0.5, per="target_variance"),
    ),
    Claim(
        "relu-equals-abs",
        "ReLU pairs do the work of Abs: MD_ReLU explains 99 % of the variance wherever it is "
        "trained, as MD_Abs can.",
        Average("test_mse", "relu", "below", 0.01, per="target_variance"),
    ),
    Claim(
        "adam-converged",
        "The epochs ensure convergence: over the last tenth of them the loss of MD_Abs changes by "
        "less than 1 %.",
        Both(
            TrialShare("late_decrease", "abs", "below", 0.01),
            TrialShare("late_decrease", "abs", "above", -0.01),
        ),
        needs={"solver": "adam"},
    ),
    *(
        Claim(
            f"abs-recovers-precision-{solver}",
            f"Trained {how}, WᵀW of MD_Abs is Σ⁻¹ within 1 %.",
            TrialShare("gram_precision_error", "abs", "below", 0.01),
            needs={"solver": solver},
        )
        for solver, how in (("adam", "with Adam"), ("newton", "until convergence"))
    ),
    *(
        Claim(
            f"{model}-hyperplanes-through-mean",
            f"The hyperplanes of {MODELS[model].label} pass through the mean: within a tenth of "
            "the spread.",
            TrialShare("mean_distance_spread", model, "below", 0.1),
        )
        for model in DISTANCES
    ),
    Claim(
        "relu-units-pair-up",
        "ReLU units form mirrored pairs: more than half of the D possible ones.",
        Average("mirrored_pairs", "relu", "above", 0.5, per="dim"),
    ),
    Claim(
        "abs-whitens",
        "The layer of MD_Abs whitens the data: sphericity norm below 0.1.",
        _WHITENS,
    ),
    Claim(
        "eigenvectors-are-rows",
        "The eigenvectors of Σ can be read off the rows of W (MD_Abs).",
        _ROWS_ARE_EIGENVECTORS,
    ),
    Claim(
        "eigenvalues-are-row-lengths",
        "The eigenvalues of Σ can be read off the lengths of the rows (MD_Abs), within 10 %.",
        TrialShare("row_eigenvalue_error", "abs", "below", 0.1),
    ),
    Claim(
        "gram-holds-eigenstructure",
        "WᵀW as a whole holds the eigenstructure (MD_Abs): eigenvalues within 1 %.",
        TrialShare("gram_eigenvalue_error", "abs", "below", 0.01),
    ),
    Claim(
        "ground-truth-whitens",
        "The analytic model whitens exactly: sphericity norm below 0.01.",
        TrialShare("sphericity", "ground-truth", "below", 0.01, fewest=1),
    ),
) + claims_from(
    "interpreting",
    Claim(
        "abs-layer-measures-mahalanobis",
        "Mechanism 1: trained linear nodes with Abs measure the Mahalanobis distance, explaining "
        "99.9 % of its variance on new data.",
        Average("test_mse", "abs", "below", 0.001, per="target_variance"),
    ),
    Claim(
        "whitening-without-principal-components",
        "Mechanism 1: the network learns directions that whiten the data without being its "
        "principal components.",
        Both(_WHITENS, _ROWS_ARE_EIGENVECTORS, negated=True),
    ),
)

# "<1e-6" in the source is given here as its bound.
_MSE = {  # mean, variance, minimum and maximum in 2, 10 and 100 dimensions
    "relu": (
        (0.0284, 1.94e-3, 2e-6, 0.2080),
        (0.0279, 1.70e-5, 0.0210, 0.0373),
        (0.0077, 3.6e-5, 0.0020, 0.0293),
    ),
    "abs": (
        (0.1220, 9.94e-3, 0.0, 0.2069),
        (0.0339, 1e-6, 0.0334, 0.0347),
        (0.0165, 2e-6, 0.0150, 0.0201),
    ),
    "sigmoid": ((0.2675, 7e-6), (0.2743, 1.6e-5), (0.1274, 2.1e-5)),
}
_OTHERS = {  # mean and standard deviation
    ("mirrored_pairs", "relu"): ((0.40, 0.60), (0.0,), (0.0,)),
    ("mean_distance", "relu"): ((0.37, 0.46), (0.18, 0.09), (0.57, 0.09)),
    ("mean_distance", "abs"): ((1.01, 1.28), (0.07, 0.01), (0.04, 0.00)),
    ("mean_distance", "sigmoid"): ((3.57, 1.79), (5.12, 0.55), (5.28, 0.14)),
    ("sphericity", "relu"): ((1.90, 0.56), (5.74, 2.08), (23.08, 0.58)),
    ("sphericity", "abs"): ((0.85, 0.71), (1.06, 0.00), (3.64, 0.18)),
    ("sphericity", "sigmoid"): ((3.41, 0.03), (7.85, 0.25), (36.86, 0.30)),
    ("sphericity", "ground-truth"): ((9.1e-7,), (5.8e-6,), (2.4e-3,)),
}
PUBLISHED: dict[tuple[str, str, int], PublishedValue] = {
    (*key, dim): msgspec.convert(dict(zip(names, value, strict=False)), PublishedValue)
    for names, table in (
        (("mean", "variance", "min", "max"), {("train_mse", m): row for m, row in _MSE.items()}),
        (("mean", "std"), _OTHERS),
    )
    for key, values in table.items()
    for dim, value in zip(PUBLISHED_EPOCHS, values, strict=True)
}

# --- Measure ----------------------------------------------------------------------------------

LATE = 0.9
"""The last tenth of the epochs begins here."""
ARRIVED = 1e-3
"""A loss below this share of the targets' variance only moves with the noise of Adam's steps."""
MOST_ROUNDING = 1e-2
"""A run is refused where rounding alone leaves more than this share of the variance."""
GRID = 161
SHOWN_SAMPLES = 400


@dataclass(frozen=True)
class Problem:
    """One Gaussian and one training set, shared by all trials and models.

    The Gaussian is in float64 on the CPU; x ``[N, D]`` and y ``[N]`` are in the dtype and on the
    device of the run. Distances are computed in float64 before they are rounded.
    """

    config: GaussianConfig
    gaussian: Gaussian
    x: Tensor
    y: Tensor
    engine: str = "auto"

    @classmethod
    def draw(cls, config: GaussianConfig, gaussian: Gaussian, engine: str = "auto") -> Problem:
        """Draw the training set of a run."""
        problem = cls(config, gaussian, torch.empty(0), torch.empty(0))
        x, y = problem._sample(config.samples, "train")
        return cls(config, gaussian, problem.cast(x), problem.cast(y), engine)

    def cast(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the dtype and on the device of the run."""
        return tensor.to(self.config.device, getattr(torch, self.config.dtype))

    def _sample(self, n: int, *purpose: str | int) -> tuple[Tensor, Tensor]:
        x = self.gaussian.sample(n, data.stream(self.config.seed, *purpose))
        return x, self.gaussian.mahalanobis(x)

    def test_set(self, model: str, trial: int) -> tuple[Tensor, Tensor]:
        """Return new samples for one evaluation, with their distances in float64."""
        x, y = self._sample(self.config.test_samples, "test", model, trial)
        return self.cast(x), y

    def chain(self, model: str) -> nn.Chain:
        """Return the architecture of a model."""
        makers = {"relu": nn.md_relu, "sigmoid": nn.md_sigmoid}
        return makers.get(model, nn.md_abs)(self.config.dim)

    def start(self, model: str, trials: range) -> TrialStack:
        """Return starting points: one draw of 2D rows a trial, shared by the models."""
        chain = self.chain(model)
        units = chain.layers[0].units
        x = self.x.to("cpu", torch.float64)
        draws = [
            init.kaiming_through_samples(
                x, 2 * self.config.dim, data.stream(self.config.seed, "start", trial)
            )
            for trial in trials
        ]
        weight = self.cast(torch.stack([weight[:units] for weight, _ in draws]))
        bias = self.cast(torch.stack([bias[:units] for _, bias in draws]))
        return train.TrialStack.from_tensors(chain, {"0.weight": weight, "0.bias": bias})

    def objective(self, chain: nn.Chain) -> train.MeanSquaredError:
        """Return what the trials of a chain are trained for."""
        return train.MeanSquaredError(chain, self.x, self.y, engine=self.engine)

    def solver(self, model: str, trials: range) -> Adam | Newton:
        """Return the solver that trains some trials of a model."""
        config, start = self.config, self.start(model, trials)
        objective = self.objective(self.chain(model))
        if config.solver == "newton":
            return train.Newton(objective, start, config.epochs)
        lr, betas = config.learning_rate, config.betas
        return train.Adam(objective, start, config.epochs, lr=lr, betas=betas)

    def continued(self, stack: TrialStack) -> Newton:
        """Return a solver that goes on from where trials ended, to see in which basin they lie.

        It works in float64 on the samples before they were rounded: rounding them leaves a
        residual that would hide a perfect fit.
        """
        config = msgspec.structs.replace(self.config, dtype="float64")
        exact = Problem.draw(config, self.gaussian, self.engine)
        start = train.TrialStack(stack.chain, stack.values.double())
        return train.Newton(exact.objective(stack.chain), start, CONTINUED_STEPS)

    def analytic(self) -> TrialStack:
        """Return the analytic model, in the dtype of the run."""
        gaussian = self.gaussian.to(self.x.dtype).to(device=self.x.device)
        return train.TrialStack.from_modules(self.chain("abs"), [nn.mahalanobis_model(gaussian)])

    def analytic_loss(self) -> float:
        """Return the training loss of the analytic model: what rounding leaves in the dtype."""
        stack = self.analytic()
        return train.MeanSquaredError(stack.chain, self.x, self.y).loss(stack).item()


def _gaussian_of(config: GaussianConfig) -> Gaussian:
    if config.gaussian is not None:
        return data.load_gaussian(config.gaussian)
    return data.draw_gaussian(config.dim, data.stream(config.seed, "gaussian", config.dim))


def _saved_gaussian(path: Path) -> Gaussian:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)  # said when the run began
        return data.load_gaussian(path)


def writes(config: GaussianConfig) -> dict[str, bytes]:
    """Return the Gaussian of the run, which its folder keeps."""
    try:
        return {GAUSSIAN: data.gaussian_text(_gaussian_of(config)).encode()}
    except InputError as error:
        if config.gaussian is None or Path(config.gaussian).exists():
            raise
        raise RunFolderError(
            f"{config.gaussian}: is missing ({error}); start the run again with --gaussian and "
            "--force"
        ) from None


def check(config: GaussianConfig, folder: Path | None) -> dict[str, Any]:
    """Draw the data; refuse sizes that do not fit, and numbers that the dtype cannot hold."""
    try:
        gaussian = _gaussian_of(config) if folder is None else _saved_gaussian(folder / GAUSSIAN)
        problem = Problem.draw(config, gaussian)
    except (RuntimeError, MemoryError) as error:
        # torch has no type of its own for this on the CPU
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            f"--dim {config.dim} with --samples {config.samples}: does not fit in the memory of "
            "this machine; give smaller numbers"
        ) from None
    variance = float(problem.y.double().var(correction=0))
    scales = gaussian.eigenvalues.sqrt().to(getattr(torch, config.dtype))
    if not (problem.x.isfinite().all() and scales.isfinite().all() and (scales > 0).all()):
        raise InputError(
            f"--dtype {config.dtype}: cannot hold the samples of this Gaussian; give --dtype "
            "float64, or a Gaussian in other units"
        )
    floor = problem.analytic_loss()
    if not floor <= MOST_ROUNDING * variance:
        raise InputError(
            f"--dtype {config.dtype}: too coarse for this Gaussian, whose exact model already "
            f"misses the distances by an MSE of {floor:.3g}; give --dtype float64, or centre and "
            "scale it"
        )
    return {
        "dim": config.dim,
        "solver": config.solver,
        "condition_number": float(gaussian.condition_number),
        "largest_eigenvalue": float(gaussian.eigenvalues[0]),
        "smallest_eigenvalue": float(gaussian.eigenvalues[-1]),
        "target_variance": variance,
    }


def threads(config: GaussianConfig) -> int:
    """Return how many threads to compute with.

    Small tensors gain little from a second thread and lose much when the other core is busy: the
    threads wait for each other at every operation.
    """
    flops = 4 * config.samples * config.trials * 2 * config.dim * (config.dim + 1)  # per epoch
    return 1 if flops < SMALL_FLOPS else torch.get_num_threads()


def measure(config: GaussianConfig, job: Job, context: Context) -> Mapping[str, Measures]:
    """Train the trials of one model and read their weights against the Gaussian."""
    path = context.input(GAUSSIAN)
    gaussian = _saved_gaussian(path) if path.exists() else _gaussian_of(config)
    problem = Problem.draw(config, gaussian, context.engine)
    if job.work == "ground-truth":
        return {job.work: _ground_truth(problem)} if job.first == 0 else {}
    solver = problem.solver(job.work, job.trials)
    _train("training", solver, context, (0.0, 0.8))
    basins = [""] * job.count
    if isinstance(solver, train.Newton):
        basins = [status.value for status in solver.statuses]
    elif job.work in DISTANCES:
        # Where the converging solver ends when it goes on from them.
        continued = problem.continued(solver.stack)
        _train("basin", continued, context, (0.8, 1.0))
        basins = [status.value for status in continued.statuses]
    return {job.work: _read(problem, job, solver, basins)}


def _train(name: str, solver: Adam | Newton, context: Context, share: tuple[float, float]) -> None:
    from mahalens.studies.run import all_threads

    # The compiled engine's numbers do not depend on how many threads share the trials.
    free = isinstance(solver, train.Adam) and solver.objective.engine == "compiled"
    with all_threads() if free else contextlib.nullcontext():
        context.drive(name, solver, share=share)


def _read(problem: Problem, job: Job, solver: Adam | Newton, basins: list[str]) -> Measures:
    """Read every trial of a model that has been trained."""
    statuses = solver.statuses
    rows = []
    results = zip(solver.final_loss.tolist(), _late_decrease(problem, solver), strict=True)
    for place, (loss, late) in enumerate(results):
        # Its weights may still be finite where only the loss was too large for the dtype.
        lost = statuses[place] is train.Status.NON_FINITE
        trial = job.first + place
        row = None if lost else _read_trial(problem, job.work, solver.stack, place, trial)
        rows.append(row and row | {"train_mse": loss, "late_decrease": late})
    epochs, curve = solver.curve
    method = solver.method if isinstance(solver, train.Newton) else "adam"
    return _measures(
        problem,
        job.work,
        solver.stack,
        rows,
        seconds=solver.seconds,
        curves={"train_mse": (epochs, curve.T)},
        statuses=[status.value for status in statuses],
        columns={
            "basin": basins,
            "steps": solver.steps.tolist(),
            "method": [method] * len(basins),
        },
    )


def _ground_truth(problem: Problem) -> Measures:
    """Read the analytic model."""
    stack, model = problem.analytic(), "ground-truth"
    row = _read_trial(problem, model, stack, 0, 0)
    return _measures(
        problem,
        model,
        stack,
        [row | {"train_mse": problem.analytic_loss(), "late_decrease": math.nan}],
        seconds=0.0,
        statuses=["analytic"],
        columns={"basin": ["zero residual"], "steps": [0], "method": ["analytic"]},
    )


def _read_trial(
    problem: Problem, model: str, stack: TrialStack, place: int, trial: int
) -> dict[str, Any]:
    """Return metrics, and eigenvalues ``[D]`` read off the rows and off WᵀW."""
    x, y = problem.test_set(model, trial)
    with torch.no_grad():
        output = stack[place](x).to("cpu", torch.float64)
    weight, bias = (tensor[place] for tensor in stack.tensors().values())
    kind = "abs" if model == "ground-truth" else model
    gaussian, inputs = problem.gaussian, problem.x.to("cpu", torch.float64)
    reading = auditing.read_layer(weight, bias, gaussian, activation=kind, inputs=inputs)
    scale = auditing.gram_scale(kind)
    return {
        "test_mse": (output - y).square().mean().item(),
        **reading,
        "rows": auditing.match_rows(auditing.rows_to_read(weight, kind), gaussian).eigenvalues,
        "gram": auditing.read_gram(weight, bias, gaussian, scale=scale).eigenvalues,
    }


def _late_decrease(problem: Problem, solver: Adam | Newton) -> list[float]:
    """Return the share of the loss that went in the last tenth of the epochs; for Adam only."""
    epochs, losses = solver.curve
    begin = int((epochs <= LATE * problem.config.epochs).sum()) - 1
    if isinstance(solver, train.Newton) or begin < 0:  # a single epoch has no last tenth
        return [math.nan] * len(solver.statuses)
    before, after = losses[begin].double(), losses[-1].double()
    floor = ARRIVED * problem.y.double().var(correction=0)
    decrease: list[float] = ((before - after) / before.maximum(floor)).tolist()
    return decrease


def _measures(
    problem: Problem, model: str, stack: TrialStack, rows: list[dict[str, Any] | None], **more: Any
) -> Measures:
    """Gather what was read of the trials, None of those that ran away."""
    lost = torch.full((problem.config.dim,), math.nan, dtype=torch.float64)
    nothing: dict[str, Any] = {**dict.fromkeys(METRICS, math.nan), "rows": lost, "gram": lost}
    known = [row or nothing for row in rows]
    metrics = {
        name: torch.tensor([row[name] for row in known], dtype=torch.float64) for name in METRICS
    }
    losses = metrics["train_mse"]
    losses = losses.where(losses.isfinite(), math.inf)
    best = int(losses.argmin())
    return Measures(
        metrics=metrics,
        plots=_fit_plots(problem, model, stack, best) if losses[best] < math.inf else {},
        trial_plots={name: torch.stack([row[name] for row in known]) for name in ("rows", "gram")},
        weights=stack.tensors(),
        chain=str(stack.chain),
        **more,
    )


def _fit_plots(problem: Problem, model: str, stack: TrialStack, best: int) -> dict[str, Tensor]:
    """Return new samples with true and learned distances, in 2-D also the plane around the mean."""
    module, gaussian, config = stack[best].double().cpu(), problem.gaussian, problem.config
    x = gaussian.sample(config.test_samples, data.stream(config.seed, "fit", model))
    with torch.no_grad():
        plots = {"true": gaussian.mahalanobis(x), "learned": module(x)}
        if config.dim == 2:
            plots["distance"] = module(_plane(gaussian)[2]).reshape(GRID, GRID)
            weight, bias = stack.tensors().values()
            plots |= {"weight": weight[best].double(), "bias": bias[best].double()}
    return plots


def _plane(gaussian: Gaussian) -> tuple[Tensor, Tensor, Tensor]:
    """Return a square around the mean with four spreads in every direction: x, y, all points."""
    reach = 4 * gaussian.eigenvalues[0].sqrt()
    across = torch.linspace(-1, 1, GRID, dtype=torch.float64) * reach
    grid_x, grid_y = gaussian.mean[0] + across, gaussian.mean[1] + across
    return grid_x, grid_y, torch.cartesian_prod(grid_y, grid_x).flip(1)


def finish(config: GaussianConfig, results: Results) -> None:
    """Add what chance gives, and the arrays of the figures under the names of all models."""
    gaussian = _saved_gaussian(results.folder / GAUSSIAN)
    chance = auditing.chance_cosine(gaussian, generator=data.stream(config.seed, "chance"))
    methods = {str(measured.columns["method"][0]) for measured in results.measures.values()} - {
        "analytic"
    }
    results.facts["method"] = ", ".join(sorted(methods)) or "none"
    results.facts["row_cosine_chance"] = [chance.low, chance.high]
    plots = {"eigenvalues/true": gaussian.eigenvalues}
    if config.dim == 2:
        grid_x, grid_y, points = _plane(gaussian)
        problem = Problem.draw(config, gaussian)
        plots |= {
            "plane/mean": gaussian.mean,
            "plane/samples": problem.x[:SHOWN_SAMPLES].to("cpu", torch.float64),
            "plane/grid_x": grid_x,
            "plane/grid_y": grid_y,
            "plane/true": gaussian.mahalanobis(points).reshape(GRID, GRID),
        }
    groups = {"true": "fit", "learned": "fit", "rows": "eigenvalues", "gram": "eigenvalues"}
    for key, measured in results.measures.items():
        for name, array in {**measured.trial_plots, **measured.plots}.items():
            plots[f"{groups.get(name, 'plane')}/{key[1]}/{name}"] = array
        results.measures[key] = replace(measured, plots={}, trial_plots={})
    results.plots |= plots


def published(
    config: GaussianConfig, metric: str, model: str, variant: str
) -> PublishedValue | None:
    """Return the published value for this dimension."""
    return PUBLISHED.get((metric, model, config.dim))


STUDY = Study(
    name="gaussian",
    question="Do networks learn the Mahalanobis distance, and can the Gaussian be read off them?",
    source=RESULTS,
    config=GaussianConfig,
    models=MODELS,
    metrics=METRICS,
    claims=CLAIMS,
    check=check,
    jobs=lambda config: jobs_of([""], config.models, config.trials),
    measure=measure,
    primary="train_mse",
    variant="",
    writes=writes,
    reads=lambda config: (),
    finish=finish,
    pools=False,
    published=published,
    group=lambda config, variant: {"dim": config.dim, "solver": config.solver},
    columns=("basin", "steps"),
    stacked=True,
    threads=threads,
    protocol="published",
    remark="The published figures belong to another random draw of the Gaussian: compare patterns "
    "and ranges, not digits.",
    shown=("train_mse", "test_mse", "mean_distance_spread", "sphericity", "gram_precision_error"),
    plots=(
        Plane(
            name="hyperplanes",
            title="Hyperplanes and distance contours",
            caption="Best trial of each model. Where a model has learned the distance, its solid "
            "contours lie on the dashed true ones. In theory every hyperplane passes through the "
            "mean; the arrow points to where w·x + b is positive. Any rotation of a whitening is "
            "a whitening, so hyperplanes need not follow the ellipse's axes.",
            metric="test_mse",
        ),
        Curves(
            name="loss",
            title="Training loss",
            caption="Every trial is a thin line. A line still sloping down at the right edge has "
            "not converged. Flat lines at different heights are different local minima, unless "
            "they lie at rounding: those trials have solved the problem exactly.",
            column="train_mse",
            panel="model",
            draw="trials",
            log=True,
            label="training MSE",
        ),
        AllMetrics(
            name="metrics",
            title="Metrics over all trials",
            caption="Compare the spread of the dots with the gap between models: a wide interval "
            "often hides two groups of trials, those that solved the problem and the others.",
        ),
        Diagonal(
            name="eigenvalues",
            title="Eigenvalues of the covariance",
            caption="On the diagonal the learned eigenvalue is the true one. The upper reading "
            "takes one eigenvalue from each unit, which works only if rows happen to be "
            "eigenvectors; the lower one takes them from WᵀW, which no rotation of the rows "
            "changes. Where only the lower lies on the diagonal, the model has learned the "
            "covariance, and only the row-wise reading fails.",
            group="eigenvalues",
            true="eigenvalues/true",
            learned=(
                ("rows", "learned eigenvalue,\nread row by row, 1/‖wᵢ‖²"),
                ("gram", "learned eigenvalue,\nread from WᵀW"),
            ),
            log=True,
            label="true eigenvalue",
        ),
        Diagonal(
            name="fit",
            title="Fit on new data",
            caption="Best trial of each model; each dot is a sample drawn after training. A model "
            "that measures the distance puts them all on the diagonal. A bend at the right is an "
            "output that saturates, a gap at the left a smallest output above 0.",
            group="fit",
            true="fit/{model}/true",
            learned=(("learned", "learned distance (spreads)"),),
            label="true distance (spreads)",
            metric="test_mse",
        ),
    ),
)
