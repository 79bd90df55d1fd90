"""
Reject unknown images
=====================

A network that knows vehicles gives an answer for a frog too. A detector on top of
the network tells known from unknown images by their features. You state how many
known images it may reject; no unknown image is needed to set it up.
"""

import matplotlib.pyplot as plt
import torch

from mahalens import InputError, data, detect

plt.style.use("mahalens.report.figures")

# %%
# A pretrained network and images it has never seen
# -------------------------------------------------
# EfficientNet-Lite0 was trained on ImageNet. The images are from CIFAR-10 and are
# enlarged to 96 x 96. The detector sees 400 vehicles. It is tried on 150 other
# vehicles and on 150 animals.

VEHICLES = torch.tensor([0, 1, 8, 9])  # aeroplane, car, ship, lorry


def load_images():
    """Return the images of each kind and the labels of the known ones."""
    cifar = data.load_samples("cifar10", limit=1500)
    images = cifar.x.view(-1, 3, 32, 32)
    vehicle = torch.isin(cifar.y, VEHICLES)
    vehicles, animals = images[vehicle], images[~vehicle]
    kinds = {
        "known": vehicles[:400],
        "new vehicles": vehicles[400:550],
        "animals": animals[:150],
    }
    return kinds, cifar.y[vehicle][:400]


# %%
# Fit the detector
# ----------------
# ``detect`` compares several methods on the known images alone, takes the best one,
# and sets its threshold by a fifth of the known images. A p-value is the share of
# known images that are at least as unusual as this one; images with a p-value below
# the stated rate are rejected.


def try_detector(kinds, labels, rate=0.05):
    """Return what a detector says about new vehicles and about animals."""
    network = data.load_backbone("efficientnet-lite0", size=96)
    detector = detect(network, (kinds["known"], labels), rate=rate)
    print(f"chosen: {detector.choice.method}")
    answers = {
        name: detector.explain(kinds[name]) for name in ("new vehicles", "animals")
    }
    for name, answer in answers.items():
        print(f"{name}: {answer.reject.float().mean():.0%} rejected")
    return answers


# %%
# The figures
# -----------
# Known images should have p-values that are spread evenly between 0 and 1. Animals
# should have small ones. Below: the most unusual and the least unusual images of
# both kinds.


def draw_p_values(answers, rate=0.05):
    """Draw the shares of images with a p-value up to each value."""
    _, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for name, answer in answers.items():
        values = answer.p_value.sort().values
        ax.step(values, torch.linspace(0, 1, len(values)), where="post", label=name)
    ax.plot(
        [0, 1],
        [0, 1],
        color="#8a8a8a",
        linewidth=1,
        linestyle=":",
        label="even spread",
    )
    ax.axvline(
        rate,
        color="k",
        linewidth=1,
        linestyle="--",
        label=f"rejected below {rate:.0%}",
    )
    ax.set(xlabel="p-value", ylabel="share of images", xlim=(0, 1), ylim=(0, 1.01))
    ax.legend(loc="lower right")
    plt.show()


def draw_extremes(kinds, answers, count=5):
    """Draw the images with the smallest and the largest p-values."""
    figure, panels = plt.subplots(2, 2 * count, figsize=(9, 2.6), layout="constrained")
    for row, (name, answer) in zip(panels, answers.items(), strict=True):
        order = answer.score.argsort(descending=True)
        chosen = torch.cat([order[:count], order[-count:]]).tolist()
        for ax, image in zip(row, chosen, strict=True):
            ax.imshow(kinds[name][image].permute(1, 2, 0).numpy())
            ax.set_title(
                f"{answer.p_value[image]:.2f}", fontweight="normal", fontsize=8.5
            )
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
        row[0].set_ylabel(name)
    figure.suptitle(f"The {count} most and {count} least unusual images, with p-values")
    plt.show()


# %%
# Weights (19 MB) and images (139 MB) are fetched on first use, as ``mahalens data
# fetch cifar10`` and ``mahalens data fetch efficientnet-lite0`` do.

try:
    for name in ("cifar10", "efficientnet-lite0"):
        data.fetch_set(name)
except InputError as error:
    print(error)
else:
    kinds, labels = load_images()
    answers = try_detector(kinds, labels)
    draw_p_values(answers)
    draw_extremes(kinds, answers)

# %%
# The rate holds on average over many draws of the known images, not for each one:
# here only 80 images set the threshold. ``python examples/unknown_images.py``
# measures 12 draws with more images.
