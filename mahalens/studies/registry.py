"""Which studies there are. Needs no torch."""

from __future__ import annotations

STUDIES = {
    "gaussian": "train MD_Abs, MD_ReLU, MD_Sigmoid to output the Mahalanobis distance of a "
    "Gaussian, and read the learned weights against the theory (source 000)",
}

DATA = {
    "gaussian": "N(mu, Sigma): mu uniform in [-10, 10]^D, Sigma = (A Aᵀ + 1e-3 I) scaled to "
    "largest eigenvalue 1",
    "--gaussian FILE": "your own mean and covariance, from .json or .npz",
}
