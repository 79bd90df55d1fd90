r"""
Known clusters
==============

Where do the hyperplanes of a trained layer lie? Under the distance reading they
pass through prototypes: means of clusters. Here the clusters are known, because
they are drawn, so the question has an answer: how far is each hyperplane from the
nearest mean, before and after training?
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import mahalens

plt.style.use("mahalens.report.figures")

# %%
# Four Gaussians in the plane
# ---------------------------
# Each cluster is a class. The classes overlap little.

draw = torch.Generator().manual_seed(3)
means = torch.tensor([[-4.0, 2.0], [3.0, 4.0], [4.0, -3.0], [-2.0, -4.0]])
factors = torch.randn(4, 2, 2, generator=draw) * 0.4 + 0.8 * torch.eye(2)
y = torch.arange(1200) % 4
x = means[y] + (factors[y] @ torch.randn(1200, 2, 1, generator=draw)).squeeze(2)

# %%
# Two starts, the same training
# -----------------------------
# A layer of 8 units with absolute values feeds a linear layer. ``kaiming`` draws
# weights that know nothing of the data. ``cluster_pca`` finds clusters by k-means
# and puts two hyperplanes through the mean of each, across its principal axes. Ten
# seeds each are trained at once.

chain = mahalens.Chain.parse("Linear(8), Abs, Linear(4)", inputs=2)
stacks = {}
for name in ("kaiming", "cluster_pca"):
    start = mahalens.TrialStack.from_seeds(chain, range(10), init=name, data=x)
    training = mahalens.fit(start, x, y, loss="cross-entropy", epochs=400, lr=0.01)
    stacks |= {f"{name}, start": start, f"{name}, trained": training.stack}

# %%
# Distance of hyperplanes to the nearest mean
# -------------------------------------------
# The distance of a mean from a hyperplane is measured in standard deviations of its
# cluster along the normal: :math:`|w \cdot \mu_c + b| / \sqrt{w^T \Sigma_c w}`.
# Below 0.5 the hyperplane passes through the cluster.


def to_nearest_mean(layer: nn.Linear) -> Tensor:
    """Return the distance of each hyperplane to the nearest mean [K]."""
    spreads = torch.linalg.vector_norm(layer.weight @ factors, dim=2)  # [C, K]
    return (layer(means).abs() / spreads).min(0).values.detach()


distances = {}
for name, stack in stacks.items():
    networks = [stack[trial] for trial in range(10)]
    distances[name] = torch.cat([to_nearest_mean(network[0]) for network in networks])
    accuracy = (stack(x).argmax(-1) == y).float().mean()
    through = (distances[name] < 0.5).float().mean()
    print(f"{name}: {accuracy:.1%} of the samples are right,")
    print(f"  {through:.0%} of the hyperplanes pass through a cluster")

# %%
# One network of each start
# -------------------------
# Training moves both kinds. Hyperplanes that were placed at the means leave them:
# to classify, a network needs boundaries between clusters as well as distances from
# them.


def draw_hyperplanes(ax, layer, colour):
    """Draw the samples, the means and the hyperplanes of a layer."""
    ax.plot(*x.T, ".", color="#c9c9c9", markersize=2)
    for weight, bias in zip(layer.weight.detach(), layer.bias.detach(), strict=True):
        foot = -weight * bias / weight.square().sum()
        along = foot + torch.stack([-weight[1], weight[0]])
        ax.axline(foot.tolist(), along.tolist(), color=colour, linewidth=1.3)
    ax.plot(*means.T, "o", color="k", markersize=5, zorder=5)
    ax.set(xlim=(-8, 8), ylim=(-8, 8), aspect="equal")
    ax.set(xlabel="first input", ylabel="second input")


figure, panels = plt.subplots(2, 2, figsize=(7, 7.2), layout="constrained")
for place, (ax, (name, stack)) in enumerate(
    zip(panels.flat, stacks.items(), strict=True)
):
    draw_hyperplanes(ax, stack[0][0], f"C{place // 2}")
    ax.set_title(name)
plt.show()

# %%
# All ten networks of each start
# ------------------------------
# Hyperplanes left of the dotted line pass through a cluster. Training draws distant
# random hyperplanes nearer to the means, but no more of them pass through a cluster
# than before. Compare any layer with the random start before you call it a set of
# prototypes. K-means finds the same clusters for every seed, so the ten
# ``cluster_pca`` networks are alike.

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for mark, (name, values) in zip(
    ("C0--", "C0-", "C1--", "C1-"), distances.items(), strict=True
):
    ax.step(values.sort().values, torch.linspace(0, 1, len(values)), mark, label=name)
ax.axvline(0.5, color="#8a8a8a", linewidth=1, linestyle=":")
ax.set_xlabel("distance to the nearest mean, in standard deviations")
ax.set(ylabel="share of hyperplanes", xlim=(-0.05, 4), ylim=(0, 1.02))
ax.legend(loc="lower right")
plt.show()
