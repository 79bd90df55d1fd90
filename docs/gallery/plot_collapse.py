"""
The collapse of ReLU2
=====================

A ReLU behind the output layer makes every output an intensity (large = like this
class) that cannot fall below zero. An output that is zero on all images has no
gradient: it comes back only if the layer before it happens to move. *Neural
Networks Learn Distance Metrics* (Oursland 2025) calls this network ReLU2. Its twin
ReLU2-Neg flips the sign of the outputs: they become distances (small = like this
class), and zero is where an output should be for its own class.
"""

import matplotlib.pyplot as plt
import torch

from mahalens import Chain, InputError, TrialStack, data, fit

plt.style.use("mahalens.report.figures")

# %%
# Two networks that differ in a sign
# ----------------------------------
# The paper trains on 60,000 MNIST images for 5,000 epochs, 20 times, by gradient
# descent with a learning rate of 0.001. Its code reads the pixels as they are, from
# 0 to 255. This page keeps the networks, the pixels and the learning rate, but
# takes 1,000 images, 400 epochs and 5 seeds, so its accuracies are lower than the
# published ones.

BODY = "Linear(128), ReLU, Linear(10, bias=False), ReLU"
NETWORKS = {"ReLU2": BODY, "ReLU2-Neg": f"{BODY}, Neg"}
EPOCHS = range(0, 400, 10)


def train_networks(digits):
    """Return accuracies and dead outputs of both networks at several epochs."""

    def measure(solver):
        outputs = solver.stack(digits.x[:1000])  # [T, N, C]
        guesses = solver.stack(digits.test_x[:2000]).argmax(-1)
        return {
            "accuracy": (guesses == digits.test_y[:2000]).float().mean(1),
            "dead": (outputs.abs() <= 1e-6).all(1).sum(1).float(),
        }

    histories = {}
    for name, text in NETWORKS.items():
        trials = TrialStack.from_seeds(Chain.parse(text, inputs=784), range(5))
        histories[name] = fit(
            trials,
            digits.x[:1000],  # raw pixels
            digits.y[:1000],
            loss="cross-entropy",
            solver="sgd",
            lr=0.001,
            epochs=400,
            metrics=measure,
            at=EPOCHS,
        ).history
    return histories


# %%
# Accuracy and dead outputs
# -------------------------
# Thin lines are single networks, thick lines their mean. An output is dead if it is
# zero on all training images.


def draw_curves(histories):
    """Draw both measures over the epochs."""
    _, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
    for place, (name, history) in enumerate(histories.items()):
        for ax, measure, factor in ((left, "accuracy", 100), (right, "dead", 1)):
            values = factor * torch.stack(list(history[measure]))  # [epochs, T]
            ax.plot(
                history.epochs,
                values,
                color=f"C{1 - place}",
                linewidth=0.7,
                alpha=0.5,
            )
            ax.plot(
                history.epochs,
                values.mean(1),
                color=f"C{1 - place}",
                linewidth=2.2,
                label=name,
            )
    left.set(title="Accuracy on test images", ylabel="per cent", ylim=(0, 100))
    right.set(title="Dead outputs", ylabel="of 10", ylim=(-0.3, 10))
    for ax in (left, right):
        ax.set_xlabel("epoch")
    left.legend(loc="upper left")
    plt.show()


# %%
# The images (11 MB) are fetched on first use, as ``mahalens data fetch mnist``
# does.

try:
    data.fetch_set("mnist")
except InputError as error:
    print(error)
else:
    histories = train_networks(data.load_set("mnist"))
    for name, history in histories.items():
        accuracy, dead = history["accuracy"][-1], history["dead"][-1]
        span = f"{accuracy.min():.1%} to {accuracy.max():.1%}"
        print(f"{name}: {accuracy.mean():.1%} right ({span}),")
        print(f"  {dead.mean():.1f} of 10 outputs dead")
    draw_curves(histories)

# %%
# The story depends on the scale of the pixels. With normalised pixels ReLU2 does
# not collapse: see :doc:`the representation study </studies/representation>`, which
# runs both.
