"""What each column of a run of the study of starting weights means. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

METRICS: dict[str, Metric] = {
    "mean_accuracy": Metric(
        "Mean accuracy on the way",
        "Mean over all epochs, from the first, of the test accuracy at their ends: the area under "
        "the curve, high for networks that train fast.",
        unit="%",
        better="high",
    ),
    "test_accuracy": Metric(
        "Test accuracy",
        "Share of the test samples whose class has the largest output, after the last epoch.",
        unit="%",
        better="high",
    ),
    "first_accuracy": Metric(
        "Accuracy after one epoch", "The same after the first epoch.", unit="%", better="high"
    ),
    "epochs_to_tenth": Metric(
        "Epochs to a tenth",
        "After how many epochs the mean training loss, interpolated between the middles of epochs, "
        "is a tenth of that of guessing, ln(classes). None if that does not happen.",
        unit="epochs",
    ),
    "reached": Metric(
        "Reached a tenth",
        "100 if the training loss fell to a tenth of that of guessing, 0 if not: the mean is the "
        "share of the trials.",
        unit="%",
        better="high",
    ),
    "train_loss": Metric(
        "Training loss",
        "Mean cross-entropy over the mini-batches of the last epoch.",
        unit="nats",
        log=True,
    ),
    "start_loss": Metric(
        "Loss at the start",
        "Cross-entropy on the samples that the start is computed from, before any training.",
        unit="nats",
    ),
    "idle_units": Metric(
        "Idle units at the start",
        "Share of the hidden units that no sample reaches, or that have all samples on one side.",
        unit="%",
    ),
    "longest_row": Metric(
        "Longest row at the start",
        "Length of the longest row of weights in the hidden layer.",
        better=None,
        log=True,
    ),
    "start_seconds": Metric("Time of the start", "What computing the start took.", unit="s"),
    "learning_rate": Metric(
        "Learning rate",
        "The one chosen for the model, by mean accuracy on the way on held-out training samples.",
        better=None,
        log=True,
    ),
    "rate_at_end": Metric(
        "Rate at the end of the grid",
        "100 if the learning rate is the lowest or the highest of those to choose from, so that "
        "the best one may lie beyond it, 0 if not.",
        unit="%",
        better=None,
    ),
}
