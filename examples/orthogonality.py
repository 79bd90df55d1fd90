"""Are the rows of a layer that has learned a Mahalanobis distance the eigenvectors?

    python examples/orthogonality.py

The Gaussian study's problem: |Wx + b| is trained until its norm is the distance of a random
Gaussian, from the same starts with and without a penalty on the cosines between rows. Inputs are
whitened by the samples for the sake of the optimiser, and weights are mapped back before anything
is read or penalised. Takes a few minutes; `--trials 3` takes less.
"""

from __future__ import annotations

import argparse

import torch

from mahalens import Gaussian, draw_gaussian, kaiming_through_samples, read_layer
from mahalens.audit import match_rows
from mahalens.nn import Norm, orthogonality_penalty

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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    print(
        "| D | penalty | converged | cosine to eigenvectors, mean (least) | eigenvalues by row, ",
        end="",
    )
    print("relative error | W^T W against Sigma^-1, relative error |")
    print("|---|---|---|---|---|---|")
    for dim in (2, 5, 10):
        for penalty in (0.0, 1.0):
            runs = [train(dim, seed, penalty) for seed in range(trials)]
            good = [run for run in runs if run["mse"] < CONVERGED]
            if not good:
                print(f"| {dim} | {penalty:g} | 0 of {trials} | | | |")
                continue

            def mean(name: str, good: list[dict[str, float]] = good) -> float:
                return sum(run[name] for run in good) / len(good)

            least = min(run["least_cosine"] for run in good)
            worst = max(run["gram_precision_error"] for run in good)
            print(
                f"| {dim} | {penalty:g} | {len(good)} of {trials} | {mean('row_cosine'):.4f} "
                f"({least:.4f}) | {mean('row_eigenvalue_error'):.1e} | at most {worst:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
