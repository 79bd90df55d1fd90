"""Which studies there are. Needs no torch."""

from __future__ import annotations

from mahalens.data.catalogue import SETS, TABLES
from mahalens.data.problems import SEQUENCES

STUDIES = {
    "gaussian": "train MD_Abs, MD_ReLU, MD_Sigmoid to output the Mahalanobis distance of a "
    "Gaussian, and read the learned weights against the theory (source 000)",
    "ellipsoids": "find points from their distances to many ellipsoids: full, Euclidean, along "
    "principal axes (source 002); with --data, classify by ellipsoids fitted to real data",
    "representation": "train networks held to distance or to intensity outputs, with dead nodes, "
    "class distributions and tests between models (source 003)",
    "perturbation": "perturb the hidden layer of trained networks by intensity and by distance, "
    "and see what it costs them (arXiv 2411.17932)",
    "activations": "hold networks of seven activations to intensities and to distances, and see "
    "which of them collapse (asked by source 004)",
    "init": "start networks from clusters, principal axes or class means, and see whether they "
    "train faster or better than Kaiming and LSUV (proposed in source 001)",
    "hybrid": "mix Abs and ReLU units in a hidden layer, from none to all, where units are many "
    "and where they are few (proposed in source 001)",
    "heads": "classify by distance or by softmax, and tell known from unknown: accuracy, "
    "calibration and rejection beside seven rivals (proposed in source 001)",
    "transfer": "put OffsetL2 heads beside linear ones on tables and sequences, with boosted trees "
    "and nearest neighbours (asked by source 004)",
}

DATA = {
    "gaussian": "N(mu, Sigma): mu uniform in [-10, 10]^D, Sigma = (A Aᵀ + 1e-3 I) scaled to "
    "largest eigenvalue 1",
    "ellipsoids": "means N(0, I), Sigma = A Aᵀ + 0.5 I with A standard normal",
    **SETS,
    **TABLES,
    **SEQUENCES,
    "FILE, DIR": "your own: .npz or .safetensors with x and y, IDX files, CIFAR-10 batches",
    "--gaussian FILE": "your own mean and covariance, from .json or .npz",
}
