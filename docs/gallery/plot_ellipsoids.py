"""
Distances to many ellipsoids, and the way back
==============================================

An ellipsoid is a mean with a covariance. The Mahalanobis distance of a point says
how many standard deviations it lies from the mean, in its own direction. Distances
to enough ellipsoids determine the point, as three distances to known places
determine a place on a map.
"""

import matplotlib.pyplot as plt
import torch

from mahalens import draw_ellipsoids, ellipsoids, reconstruct

plt.style.use("mahalens.report.figures")

# %%
# Three distances in the plane
# ----------------------------
# Each contour has the points at one distance from one ellipsoid. Two contours cross
# in several points. All three cross in one, and ``reconstruct`` finds it.

means = torch.tensor([[-2.0, 0.0], [2.0, 1.5], [0.5, -2.5]], dtype=torch.float64)
covariances = torch.tensor(
    [
        [[1.0, 0.4], [0.4, 0.6]],
        [[0.8, -0.5], [-0.5, 1.2]],
        [[2.0, 0.0], [0.0, 1.0]],
    ],
    dtype=torch.float64,
)
three = ellipsoids.from_covariance(means, covariances)
point = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
distances = three.distances(point)
result = reconstruct(three, distances)
print("distances:", distances.round(decimals=3).tolist()[0])
print("reconstructed point:", result.x.round(decimals=3).tolist()[0])
print(result.describe().replace(". ", ".\n"))

# %%
# Colours belong to ellipsoids: filled up to one standard deviation, with the
# contour of the points that are as far away as the true one.

across, up = torch.meshgrid(
    torch.linspace(-5, 5, 300).to(means),
    torch.linspace(-6, 5, 300).to(means),
    indexing="xy",
)
fields = three.distances(torch.stack([across, up], dim=-1).reshape(-1, 2)).reshape(
    300, 300, 3
)
figure, ax = plt.subplots(figsize=(5.6, 5.6), layout="constrained")
for place, mean in enumerate(means):
    field, distance = fields[..., place].numpy(), float(distances[0, place])
    ax.contourf(across, up, field, [0, 1], colors=[f"C{place}"], alpha=0.25)
    ax.contour(across, up, field, [distance], colors=[f"C{place}"], linewidths=1.6)
    ax.plot(*mean, "+", color=f"C{place}", markersize=9)
    ax.text(mean[0], mean[1] + 0.2, f"d = {distance:.2f}", color="k", ha="center")
ax.plot(
    *result.x[0],
    "o",
    color="k",
    markersize=7,
    label="reconstructed point",
    zorder=5,
)
ax.set(xlabel="first input", ylabel="second input", aspect="equal")
ax.legend(loc="upper left")
plt.show()

# %%
# How many distances does a point in 50 dimensions need?
# ------------------------------------------------------
# Ten points are reconstructed from their distances to 10, 20, ... 120 ellipsoids,
# once from exact distances and once with noise of 0.01 in each. Below 50 distances
# some directions stay open. Above 51, exact distances give the point up to
# rounding, and more distances average the noise away.

many = draw_ellipsoids(50, 120, dtype=torch.float64)
draw = torch.Generator().manual_seed(0)
points = torch.randn(10, 50, generator=draw, dtype=torch.float64)
exact = many.distances(points)
noisy = exact + 0.01 * torch.randn(exact.shape, generator=draw, dtype=torch.float64)

counts = [10, 20, 30, 40, 48, 52, 60, 80, 100, 120]
errors: dict[str, list[float]] = {"exact distances": [], "noise of 0.01": []}
for name, given in zip(errors, (exact, noisy), strict=True):
    for count in counts:
        found = reconstruct(many, given[:, :count], subset=range(count), restarts=3)
        errors[name].append(float((found.x - points).norm(dim=1).median()))

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, marker in zip(errors, "os", strict=True):
    ax.semilogy(counts, errors[name], marker=marker, label=name)
ax.axvline(50, color="#8a8a8a", linewidth=1, linestyle=":")
ax.text(
    49,
    1e-12,
    "as many distances\nas dimensions",
    ha="right",
    color="#5a5a5a",
    fontsize=8.5,
)
ax.set(
    xlabel="number of distances",
    ylabel="median error of a point",
    ylim=(1e-16, 1e2),
)
ax.legend(loc="center right")
plt.show()
