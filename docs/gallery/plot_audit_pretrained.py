"""
Audit a pretrained network
==========================

EfficientNet-Lite0 was trained on ImageNet and has 50 layers with 22,008 units.
Which of them do anything on your images? An audit reads all of them in one pass and
leaves the network as it was.
"""

import matplotlib.pyplot as plt
from torch.nn.functional import interpolate

import mahalens
from mahalens import InputError, data

plt.style.use("mahalens.report.figures")

# %%
# Network and images
# ------------------
# The images are from CIFAR-10, enlarged to 64 x 64. This is a small audit: 80
# images, and layers are not compared with those of the same network untrained
# (``baseline=None``), so it counts silent units and leaves verdicts alone.
# ``examples/audit_pretrained.py`` audits other networks in full.


def audit_network(count):
    """Return the audit of the network on ``count`` images."""
    network = data.load_backbone("efficientnet-lite0")
    cifar = data.load_samples("cifar10", limit=count)
    images = interpolate(cifar.x.view(-1, 3, 32, 32), size=64)
    return mahalens.audit(
        network,
        (images, cifar.y),
        classes=cifar.classes,
        baseline=None,
        examples=False,
        batch_size=40,
        name="EfficientNet-Lite0",
        source=f"{count} test images of CIFAR-10, 64 x 64",
    )


# %%
# Silent units, layer by layer
# ----------------------------
# A block of this network has three convolutions: one expands, one filters each
# channel, one projects back. Only the first two are followed by a ReLU. A unit is
# dead if it is active at no position of any image, and rare if it is active at less
# than 5 % of the positions.

KINDS = {"0": "expands", "3": "filters", "6": "projects"}


def draw_silent_units(record):
    """Draw the share of dead and of rare units in each layer with a ReLU."""
    layers = [layer for layer in record.layers if layer.activation == "relu6"]
    places = range(len(layers))
    rare = [100 * len(layer.units.rare["0.05"]) / layer.units_count for layer in layers]
    dead = [100 * len(layer.units.dead) / layer.units_count for layer in layers]
    _, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
    ax.bar(places, rare, color="C5", label="rare: active at less than 5 % of positions")
    ax.bar(places, dead, color="C1", label="dead: active nowhere")
    names = [name_of(layer.name) for layer in layers]
    ax.set_xticks(places, names, rotation=90, fontsize=7.5)
    ax.set(ylabel="share of the layer's units (%)", xlim=(-0.7, len(layers) - 0.3))
    ax.grid(False, axis="x")
    ax.legend(loc="upper left")
    plt.show()


def name_of(layer):
    """Return the name of a layer as block and kind.

    >>> name_of("18.layers.3")
    'block 15 filters'
    """
    block, _, part = layer.partition(".layers.")
    if not part:
        return "first" if block == "1" else "last"
    kind = "filters" if block == "4" else KINDS[part]  # the first block does not expand
    return f"block {int(block) - 3} {kind}"


# %%
# How sure is "dead"?
# -------------------
# Few images can only prove that a unit is alive. With more images, dead units come
# to life: read "dead" as "dead on these images". The same holds for pruning:
# ``prune`` keeps the outputs on the data you give it, so give it enough.


def print_dead_units(records):
    """Print how many units are dead, with few and with more images."""
    for record in records:
        dead = sum(len(layer.units.dead) for layer in record.layers)
        total = sum(layer.units_count for layer in record.layers)
        print(f"{record.data.samples} images: {dead} of {total:,} units are dead")


# %%
# Weights (19 MB) and images (139 MB) are fetched on first use, as ``mahalens data
# fetch cifar10`` and ``mahalens data fetch efficientnet-lite0`` do.

try:
    for name in ("cifar10", "efficientnet-lite0"):
        data.fetch_set(name)
except InputError as error:
    print(error)
else:
    records = [audit_network(count) for count in (20, 80)]
    print_dead_units(records)
    worst = max(records[-1].layers, key=lambda layer: len(layer.units.dead))
    dead = len(worst.units.dead)
    print(f"most of them in {name_of(worst.name)}: {dead} of {worst.units_count}")
    draw_silent_units(records[-1])
