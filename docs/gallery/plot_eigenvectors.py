r"""
Rows become eigenvectors
========================

A layer measures the Mahalanobis distance of a Gaussian when :math:`W^T W =
\Sigma^{-1}`. Any rotation of a whitening is a whitening too, so training alone does
not decide which rows it finds. With a penalty on the cosines between rows only one
choice is left: rows at right angles that whiten the data are the eigenvectors of
the covariance.
"""

import matplotlib.pyplot as plt
import torch

from mahalens import (
    Gaussian,
    Norm,
    draw_gaussian,
    kaiming_through_samples,
    orthogonality_penalty,
)
from mahalens.auditing import match_rows

plt.style.use("mahalens.report.figures")

# %%
# Train a layer with and without the penalty
# ------------------------------------------
# The loss is the squared error of the distance :math:`\|\,|Wx + b|\,\|`, and 1
# times the penalty where it is used. L-BFGS converges well on whitened inputs, so
# the layer is trained on these and its weights are mapped back.


def train(gaussian, seed, penalty):
    """Return the rows of a trained layer and its mean squared error."""
    draw = torch.Generator().manual_seed(seed)
    x = gaussian.sample(1000, generator=draw)
    target = gaussian.mahalanobis(x)
    data = Gaussian.from_data(x)
    basis = data.whitening("zca")
    z = (x - data.mean) @ basis.T
    weight, bias = kaiming_through_samples(z, gaussian.mean.numel(), draw)
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=2000,
        history_size=50,
        tolerance_grad=1e-10,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def error():
        return (Norm()((z @ weight.T + bias).abs()) - target).square().mean()

    def loss():
        optimiser.zero_grad()
        value = error() + penalty * orthogonality_penalty(weight @ basis)
        value.backward()
        return value

    optimiser.step(loss)
    return (weight @ basis).detach(), error().item()


# %%
# Two dimensions: ten starts each
# -------------------------------
# Without the penalty, every start ends with different rows, all of them exact. With
# it, all starts end with the same two directions. Starts that end in a local
# minimum are left out.


def converged(gaussian, seeds, penalty):
    """Return the rows of the trials that learned the distance exactly."""
    results = [train(gaussian, seed, penalty) for seed in seeds]
    return [rows for rows, error in results if error < 1e-8]


plane = draw_gaussian(2, torch.Generator().manual_seed(0))
values, vectors = plane.spectrum
angles = torch.linspace(0, 2 * torch.pi, 200, dtype=vectors.dtype)
ellipse = (vectors * values.sqrt()) @ torch.stack([angles.cos(), angles.sin()])


def draw_rows(ax, solutions, title):
    """Draw the directions of rows, the eigenvectors and the ellipse of the data."""
    ax.plot(*ellipse, color="#8a8a8a", linewidth=1.2)
    for row in torch.cat(solutions):
        ax.plot(*torch.stack([-row, row]).T / row.norm(), "C0-", linewidth=1.3)
    for vector in vectors.T:
        ax.plot(*torch.stack([-vector, vector]).T * 1.5, "C1--", zorder=1)
    ax.set_title(f"{title}: {len(solutions)} of 10 converged")
    ax.set(aspect="equal", xlabel="first input")


figure, panels = plt.subplots(1, 2, figsize=(8, 4.2), sharey=True, layout="constrained")
draw_rows(panels[0], converged(plane, range(10), penalty=0), "No penalty")
draw_rows(panels[1], converged(plane, range(10), penalty=1), "With penalty")
panels[0].set_ylabel("second input")
panels[0].plot([], [], "C0-", label="direction of a row")
panels[0].plot([], [], "C1--", label="eigenvector")
panels[0].plot([], [], color="#8a8a8a", label="one standard deviation")
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %%
# Five dimensions: which row is which eigenvector?
# ------------------------------------------------
# A dark square is a row that points along an eigenvector. The length of such a row
# gives the eigenvalue too: :math:`\lambda = 1 / \|w\|^2`.

space = draw_gaussian(5, torch.Generator().manual_seed(1))


def draw_cosines(ax, rows, title):
    """Draw the cosines between rows and eigenvectors."""
    match = match_rows(rows, space)
    unit = (rows / rows.norm(dim=1, keepdim=True))[match.rows]
    cosines = (unit @ space.spectrum.vectors).abs()
    for i, j in torch.cartesian_prod(torch.arange(5), torch.arange(5)).tolist():
        colour = "white" if cosines[i, j] > 0.6 else "#222222"
        ax.text(j, i, f"{cosines[i, j]:.2f}", ha="center", va="center", color=colour)
    ax.grid(False)
    ax.set(title=title, xlabel="eigenvector", xticks=range(5), yticks=range(5))
    print(f"{title}: eigenvalues by row are off by {match.mean_error:.1%} on average")
    return ax.imshow(cosines.numpy(), cmap="Blues", vmin=0, vmax=1)


figure, panels = plt.subplots(1, 2, figsize=(8, 3.9), sharey=True, layout="constrained")
draw_cosines(panels[0], converged(space, range(3), penalty=0)[0], "No penalty")
image = draw_cosines(
    panels[1], converged(space, range(3), penalty=1)[0], "With penalty"
)
panels[0].set_ylabel("row, in the order of its eigenvector")
figure.colorbar(image, ax=panels, label="|cosine|", shrink=0.85)
plt.show()
