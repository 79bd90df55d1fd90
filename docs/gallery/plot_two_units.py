"""
Two units measure a distance
============================

``MD_Abs`` with its weights set to the truth gives the Mahalanobis distance of a Gaussian: its two
hyperplanes are the principal axes, and its output grows by 1 with every standard deviation.
"""

import matplotlib.pyplot as plt
import torch

from mahalens import draw_gaussian, mahalanobis_model

gaussian = draw_gaussian(2, torch.Generator().manual_seed(1))
model = mahalanobis_model(gaussian)
x = gaussian.sample(500, generator=torch.Generator().manual_seed(2))
with torch.no_grad():
    distances = model(x)
print(f"{(distances < 2).float().mean():.0%} of the samples are nearer than 2")

# %%
# The colour is the output of the network.

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
dots = axes.scatter(*x.T, c=distances, s=12)
axes.set_aspect("equal")
figure.colorbar(dots, label="distance in standard deviations")
plt.show()
