"""What each column of a run of the heads study means. No torch."""

from __future__ import annotations

from mahalens.studies.metric import Metric

METRICS: dict[str, Metric] = {
    "auroc": Metric(
        "AUROC",
        "Probability that an unknown sample looks more unknown to the model than a known test "
        "sample: 1 if all do, 0.5 by guessing. Unknown are the test samples of the other set, or "
        "all samples of the classes that the trial left out.",
        better="high",
    ),
    "test_accuracy": Metric(
        "Test accuracy",
        "Share of the test samples of known classes that are given their class.",
        unit="%",
        better="high",
    ),
    "missed_at_95": Metric(
        "Missed at 95 %",
        "Share of the unknown samples that pass for known where 95 % of the known ones do.",
        unit="%",
    ),
    "rejected_unknown": Metric(
        "Unknown rejected",
        "Share of the unknown samples beyond the threshold that is to reject 5 % of known ones "
        "(or another reject rate), set on held-out training samples.",
        unit="%",
        better="high",
    ),
    "rejected_known": Metric(
        "Known rejected",
        "Share of the known test samples beyond the same threshold: 5 % if they are like those "
        "that it was set on.",
        unit="%",
        better=None,
    ),
    "auroc_shuffled": Metric(
        "AUROC, shuffled",
        "The same as AUROC with test samples whose values are in random order for the unknown: an "
        "easy case.",
        better="high",
    ),
    "ece": Metric(
        "ECE",
        "Expected calibration error: by how much the probability of the chosen class differs from "
        "how often it is right, in 15 bins, on test samples.",
    ),
    "ece_calibrated": Metric(
        "ECE, calibrated",
        "The same with a temperature that suits held-out training samples best.",
    ),
    "nll": Metric("NLL", "Mean of -log p(class) over test samples.", unit="nats", log=True),
    "nll_calibrated": Metric(
        "NLL, calibrated", "The same with the temperature.", unit="nats", log=True
    ),
    "seconds": Metric(
        "Time of training",
        "What training the network took on one core; of all five for the ensemble.",
        unit="s",
        better=None,
    ),
}
