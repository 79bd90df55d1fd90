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
    [chain.build(dtype=x.dtype, init="sample_point_bias", data=x) for _ in range(20)],
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

left, bottom = (gaussian.mean - 4 * x.std(0)).tolist()
right, top = (gaussian.mean + 4 * x.std(0)).tolist()
across, up = torch.linspace(left, right, 240), torch.linspace(bottom, top, 240)
grid = torch.cartesian_prod(up, across).flip(1).to(x)  # [240 * 240, 2]


def draw_network(ax, network, title):
    """Draw samples, hyperplanes, and contours of the learned and the true distance."""
    ax.plot(*x.T, ".", color="#c9c9c9", markersize=2)
    layer = network[0]
    for weight, bias in zip(layer.weight.detach(), layer.bias.detach(), strict=True):
        foot = -bias * weight / weight.square().sum()
        along = foot + torch.stack([-weight[1], weight[0]])
        ax.axline(foot.tolist(), along.tolist(), color="C1")
    learned = network(grid).detach().view(240, 240)
    true = gaussian.mahalanobis(grid).view(240, 240)
    ax.contour(across, up, learned, [1, 2, 3], colors="C0", linewidths=1.6)
    ax.contour(across, up, true, [1, 2, 3], colors="k", linestyles="--", linewidths=0.9)
    ax.plot(*gaussian.mean, "ko", markersize=5)
    ax.set(xlim=(left, right), ylim=(bottom, top), title=title, xlabel="first input")


figure, panels = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
draw_network(panels[0], trials.stack[best], "Zero residual")
draw_network(panels[1], trials.stack[worst], "Local minimum")
panels[0].set_ylabel("second input")
panels[0].plot([], [], "C0-", label="learned distance 1, 2, 3")
panels[0].plot([], [], "k--", label="true distance 1, 2, 3", linewidth=0.9)
panels[0].plot([], [], "C1-", label="hyperplane of a unit")
panels[0].plot([], [], "ko", label="mean", markersize=5)
figure.legend(loc="outside lower center", ncols=4)
plt.show()
