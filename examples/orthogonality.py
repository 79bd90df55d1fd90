"""Are the rows of a layer that has learned a Mahalanobis distance the eigenvectors?

    python examples/orthogonality.py

The Gaussian study's problem: |Wx + b| is trained until its norm is the distance of a random
Gaussian, from the same starts with and without a penalty on the cosines between rows. Inputs are
whitened by the samples for the sake of the optimiser, and weights are mapped back before anything
is read or penalised. Takes a few minutes; `--trials 3` takes less.
"""

from __future__ import annotations

import argparse
import math

import torch

from mahalens import Gaussian, draw_gaussian, kaiming_through_samples, read_layer
from mahalens.auditing import match_rows
from mahalens.nn import Norm, orthogonality_penalty
from mahalens.stats import paired_lower, summarise

CONVERGED = 1e-8


def train(dim: int, seed: int, penalty: float, samples: int = 1000) -> dict[str, float]:
    """Train one layer and read it."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = draw_gaussian(dim, generator)
    x = gaussian.sample(samples, generator=generator)
    target = gaussian.mahalanobis(x)
    found = Gaussian.from_data(x)
    basis = found.whitening("zca")
    z = (x - found.mean) @ basis.T
    weight, bias = kaiming_through_samples(z, dim, generator)
    weight.requires_grad_()
    bias.requires_grad_()
    norm = Norm()

    def misfit() -> torch.Tensor:
        return (norm((z @ weight.T + bias).abs()) - target).square().mean()

    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=8000,
        max_eval=10000,
        history_size=50,
        tolerance_grad=1e-10,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = misfit()
        if penalty:
            value = value + penalty * orthogonality_penalty(weight @ basis)
        value.backward()
        return value

    optimiser.step(loss)
    rows = (weight @ basis).detach()
    read = read_layer(rows, bias.detach() - rows @ found.mean, gaussian, activation="abs")
    return {
        "mse": misfit().item(),
        "row_cosine": read["row_cosine"],
        "least_cosine": float(match_rows(rows, gaussian).cosines.min()),
        "row_eigenvalue_error": read["row_eigenvalue_error"],
        "gram_precision_error": read["gram_precision_error"],
    }


def main() -> None:
    """Print the table, and the paired tests below it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    print("| D | penalty | converged | cosine to eigenvectors, mean ± half-width ", end="")
    print(
        "of its 95 % interval (least) | eigenvalues by row, relative error, mean (largest) ", end=""
    )
    print("| W^T W against Sigma^-1, relative error |")
    print("|---|---|---|---|---|---|")
    tests = []
    for dim in (2, 5, 10):
        runs = {
            penalty: [train(dim, seed, penalty) for seed in range(trials)] for penalty in (0.0, 1.0)
        }
        for penalty, found in runs.items():
            print(line(dim, penalty, found), flush=True)
        without, given = (
            [run["row_cosine"] if run["mse"] < CONVERGED else math.nan for run in found]
            for found in runs.values()
        )
        test = paired_lower(without, given)
        tests.append(
            f"D = {dim}: the cosine is larger with the penalty in {test.wins} of {test.n} trials "
            f"that converged both ways, by {-test.median_difference:.2f} in the median "
            f"(one-sided Wilcoxon p = {test.p_value:.2g})"
        )
    print("", *tests, sep="\n")


def line(dim: int, penalty: float, runs: list[dict[str, float]]) -> str:
    """A row of the table: what the trials that converged say."""
    good = [run for run in runs if run["mse"] < CONVERGED]
    if not good:
        return f"| {dim} | {penalty:g} | 0 of {len(runs)} | | | |"
    cosine = summarise([run["row_cosine"] for run in good])
    half = "" if cosine.ci95 is None else f" ± {(cosine.ci95[1] - cosine.ci95[0]) / 2:.4f}"
    least = min(run["least_cosine"] for run in good)
    errors = [run["row_eigenvalue_error"] for run in good]
    worst = max(run["gram_precision_error"] for run in good)
    return (
        f"| {dim} | {penalty:g} | {len(good)} of {len(runs)} | {cosine.mean:.4f}{half} "
        f"({least:.4f}) | {sum(errors) / len(errors):.1e} ({max(errors):.0e}) "
        f"| at most {worst:.0e} |"
    )


if __name__ == "__main__":
    main()
