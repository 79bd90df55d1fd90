"""The columns of ``trials.csv`` in the transfer study. Needs no torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

METRICS: dict[str, Metric] = {
    "test_accuracy": Metric(
        "Test accuracy", "Share of test samples classified rightly.", "%", "high"
    ),
    "balanced_accuracy": Metric(
        "Balanced accuracy",
        "The same for each class alone, averaged over classes: a rare class counts as much as a "
        "common one.",
        "%",
        "high",
    ),
    "log_loss": Metric(
        "Test log loss",
        "Mean of minus the logarithm of the probability given to the right class. Votes of "
        "neighbours give no probabilities.",
        "nats",
        "low",
        log=True,
    ),
    "train_accuracy": Metric(
        "Training accuracy", "Share of training samples classified rightly.", "%", None
    ),
    "chosen_rate": Metric(
        "Learning rate", "Chosen on held-out parts of the training samples.", "", None, log=True
    ),
    "chosen_epochs": Metric("Epochs", "At which training ended, chosen in the same way.", "", None),
    "at_limit": Metric(
        "At the limit",
        "1 if training went on to the last epoch allowed, so that more might have helped; else 0.",
        "",
        None,
    ),
    "neighbours": Metric(
        "Neighbours", "How many vote; chosen on held-out parts of the training samples.", "", None
    ),
}
