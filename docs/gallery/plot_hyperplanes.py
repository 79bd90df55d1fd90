r"""
Hyperplanes in two dimensions
=============================

A unit with an absolute value measures how far a point is from a hyperplane. Two
such units can measure the Mahalanobis distance of a Gaussian in two dimensions:

.. math:: d(x) = \sqrt{(w_1 \cdot x + b_1)^2 + (w_2 \cdot x + b_2)^2}

is the true distance if both hyperplanes pass through the mean and :math:`W^T W` is
the inverse of the covariance. Does training find this?
"""

import matplotlib.pyplot as plt
import torch

from mahalens import TrialStack, draw_gaussian, fit, md_abs, read_layer

plt.style.use("mahalens.report.figures")

# %%
# Train twenty networks at once
# -----------------------------
# All networks see the same 1,000 samples with their true distances. They differ in
# their starting weights: rows are drawn at random, and every hyperplane starts at a
# random sample. ``solver="newton"`` trains each network until it converges.

draw = torch.Generator().manual_seed(0)
gaussian = draw_gaussian(2, draw)
x = gaussian.sample(1000, generator=draw)

chain = md_abs(2)  # Linear(2), Abs, Norm
torch.manual_seed(0)
start = TrialStack.from_modules(
    chain,
    [
        chain.build(dtype=x.dtype, init="sample_point_bias", data=x)
        for _ in range(20)
    ],
)
trials = fit(start, x, gaussian.mahalanobis(x), epochs=500, solver="newton")

statuses = [status.value for status in trials.statuses]
for word in sorted(set(statuses)):
    print(f"{statuses.count(word)} of {len(statuses)} networks end at: {word}")

# %%
# Read the best and the worst network
# -----------------------------------
# A network with zero residual has learned the distance exactly: its hyperplanes
# pass through the mean. The worst network sits in a local minimum. Its hyperplanes
# are nearly parallel, one on each side of the mean, so it measures along one
# direction only. Run several trials and look at their statuses: the loss alone does
# not tell a local minimum from slow training.

best, worst = int(trials.final_loss.argmin()), int(trials.final_loss.argmax())
for name, trial in (("best", best), ("worst", worst)):
    layer = trials.stack[trial][0]
    reading = read_layer(layer.weight, layer.bias, gaussian, activation="abs")
    print(f"{name}: mean squared error {trials.final_loss[trial]:.1e}")
    print(f"  hyperplanes {reading['mean_distance']:.2g} from the mean on average")
    print(f"  relative error of WᵀW: {reading['gram_precision_error']:.1e}")

# %%
# The picture
# -----------
# Solid contours show the learned distance, dashed ones the true distance. On the
# left they coincide.

centre, spread = gaussian.mean, x.std(0)
low, high = (centre - 4.2 * spread).tolist(), (centre + 4.2 * spread).tolist()
grid_x, grid_y = torch.meshgrid(
    torch.linspace(low[0], high[0], 240),
    torch.linspace(low[1], high[1], 240),
    indexing="xy",
)
points = torch.stack([grid_x, grid_y], dim=-1).to(x)  # [240, 240, 2]

figure, panels = plt.subplots(
    1, 2, figsize=(8, 4), sharey=True, layout="constrained"
)
for ax, trial, title in zip(
    panels, (best, worst), ("Zero residual", "Local minimum"), strict=True
):
    network = trials.stack[trial]
    with torch.no_grad():
        learned = network(points.reshape(-1, 2)).reshape(240, 240)
    true = gaussian.mahalanobis(points.reshape(-1, 2)).reshape(240, 240)
    ax.plot(*x.T, ".", color="#c9c9c9", markersize=2, zorder=1)
    ax.contour(
        grid_x, grid_y, learned, [1, 2, 3], colors="C0", linewidths=1.6, zorder=3
    )
    ax.contour(
        grid_x,
        grid_y,
        true,
        [1, 2, 3],
        colors="k",
        linewidths=0.9,
        linestyles="--",
        zorder=4,
    )
    for weight, bias in zip(
        network[0].weight.detach(), network[0].bias.detach(), strict=True
    ):
        foot = centre - weight * (weight @ centre + bias) / weight.square().sum()
        along = torch.stack([-weight[1], weight[0]])
        ax.axline(
            foot.tolist(),
            (foot + along).tolist(),
            color="C1",
            linewidth=1.6,
            zorder=2,
        )
    ax.plot(*centre, "o", color="k", markersize=5, zorder=5)
    ax.set(
        xlim=(low[0], high[0]),
        ylim=(low[1], high[1]),
        title=title,
        xlabel="first input",
    )
panels[0].set_ylabel("second input")
lines = [
    plt.Line2D([], [], color="C0", linewidth=1.6, label="learned distance 1, 2, 3"),
    plt.Line2D(
        [],
        [],
        color="k",
        linewidth=0.9,
        linestyle="--",
        label="true distance 1, 2, 3",
    ),
    plt.Line2D([], [], color="C1", linewidth=1.6, label="hyperplane of a unit"),
    plt.Line2D(
        [], [], color="k", marker="o", linestyle="", markersize=5, label="mean"
    ),
]
figure.legend(handles=lines, loc="outside lower center", ncols=4)
plt.show()
