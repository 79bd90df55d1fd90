"""
Prune a network
===============

Wide layers often have units that change nothing: some are never active, some
compute the same as another one. ``audit`` finds both, and ``prune`` returns a
smaller network with the same outputs on the data.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import mahalens

plt.style.use("mahalens.report.figures")

# %%
# Train a network with superfluous units
# --------------------------------------
# A network for digits is widened before its training, as people do to add capacity:
# 8 of its 40 hidden units are copies of others, with the same weights before and
# behind. Copies receive the same gradient, so training never separates them. Dead
# units come for free: a learning rate of 0.03 pushes some ReLU units off all
# samples.

digits = mahalens.load_set("digits").scaled()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
with torch.no_grad():
    network[0].weight[32:] = network[0].weight[:8]
    network[0].bias[32:] = network[0].bias[:8]
    network[2].weight[:, 32:] = network[2].weight[:, :8]

training = mahalens.fit(
    [network], digits.x, digits.y, loss="cross-entropy", epochs=150, lr=0.03
)
network = training.stack[0]

# %%
# Audit it
# --------
# An audit reads any ``nn.Module`` and leaves it as it was.

record = mahalens.audit(network, (digits.x, digits.y))
print(record.verdict)
layer = record.layers[0]
print("dead units:", *layer.units.dead)
print("pairs of duplicates:", *layer.pairs.duplicate)

# %%
# Prune it
# --------
# Before ``prune`` returns, both networks run on all of the data, and every output
# is compared. A change that is more than rounding is taken back.

smaller = mahalens.prune(network, record, digits.x)
print(smaller.pruned)
with torch.no_grad():
    before, after = network(digits.test_x), smaller(digits.test_x)
print(f"outputs on test digits differ by at most {(before - after).abs().max():.1e}")
for when, outputs in (("before", before), ("after", after)):
    right = (outputs.argmax(1) == digits.test_y).float().mean()
    print(f"{when} pruning: {right:.1%} of the test digits are right")

# %%
# Hidden units before and after
# -----------------------------
# Each small image shows the weights of a hidden unit on the 8 x 8 pixels of a
# digit, blue for positive and red for negative ones. Dead units stopped learning
# early and have small weights. Only data can tell: unit 2, the third of the first
# row, looks dead too but is active on some digits.

dead, copies = set(layer.units.dead), {pair[1] for pair in layer.pairs.duplicate}
fates = {"dead": "C1", "duplicate": "C4", "kept": "#c9c9c9"}
units = [
    "dead" if k in dead else "duplicate" if k in copies else "kept" for k in range(40)
]


def draw_units(part, weights, fate_of, title):
    """Draw the weights of units as images, ten in a row."""
    part.suptitle(title, fontweight="bold", fontsize=10.5)
    for place, ax in enumerate(part.subplots(4, 10).flat):
        if place >= len(weights):
            ax.axis("off")
            continue
        ax.imshow(weights[place].reshape(8, 8).numpy(), cmap="RdBu", vmin=-1, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set(visible=True, color=fates[fate_of[place]], linewidth=2)


figure = plt.figure(figsize=(9, 2.7), layout="constrained")
left, right = figure.subfigures(1, 2, wspace=0.04)
rows, left_over = network[0].weight.detach(), smaller[0].weight.detach()
draw_units(left, rows, units, f"Before: {len(rows)} units")
draw_units(
    right, left_over, ["kept"] * len(left_over), f"After: {len(left_over)} units"
)
squares = [
    plt.Line2D(
        [], [], marker="s", linestyle="", mfc="white", mec=colour, mew=2, label=fate
    )
    for fate, colour in fates.items()
]
figure.legend(handles=squares, loc="outside lower center", ncols=3)
plt.show()
