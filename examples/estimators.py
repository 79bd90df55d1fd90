"""Compare the scikit-learn estimators with their neighbours in scikit-learn, on its own data sets.

    python examples/estimators.py [--repeats 10]

Prints the accuracy of classifiers by stratified 5-fold cross-validation. Then outlier detectors are
fitted to half of the samples of one class. The second table has the share of the other half that
they reject with a rate of 5 %, the third their AUROC against all other classes; both are means over
classes. ± is the standard deviation over repeats with other folds and halves; – means that a fit
failed. Written for scikit-learn 1.9.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.covariance import EllipticEnvelope
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mahalens.estimators import MahalanobisClassifier, MahalanobisMetric, MahalanobisOutliers

SETS = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}
Make = Callable[[], Any]
CLASSIFIERS: dict[str, Make] = {
    "MahalanobisClassifier": MahalanobisClassifier,
    "  the same, shared=True": lambda: MahalanobisClassifier(shared=True),
    "  the same, standardise=False": lambda: MahalanobisClassifier(standardise=False),
    "QuadraticDiscriminantAnalysis, scaled": lambda: make_pipeline(
        StandardScaler(), QuadraticDiscriminantAnalysis(solver="eigen", shrinkage="auto")
    ),
    "MahalanobisMetric, 5 neighbours": lambda: make_pipeline(
        MahalanobisMetric(), KNeighborsClassifier()
    ),
    "StandardScaler, 5 neighbours": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier()),
}
DETECTORS: dict[str, Make] = {
    "MahalanobisOutliers": lambda: MahalanobisOutliers(rate=0.05),
    '  the same, "marginal"': lambda: MahalanobisOutliers("marginal", rate=0.05),
    "EllipticEnvelope": lambda: EllipticEnvelope(contamination=0.05, random_state=0),
    "IsolationForest": lambda: IsolationForest(contamination=0.05, random_state=0),
    "LocalOutlierFactor, scaled": lambda: make_pipeline(
        StandardScaler(), LocalOutlierFactor(contamination=0.05, novelty=True)
    ),
}


def accuracies(make: Make, X: Any, y: Any, repeats: int) -> list[float]:
    """Return the mean accuracy of each repeat, in percent."""
    folds = [StratifiedKFold(5, shuffle=True, random_state=seed) for seed in range(repeats)]
    return [100 * cross_val_score(make(), X, y, cv=cut).mean() for cut in folds]


def detected(make: Make, X: Any, y: Any, repeats: int) -> list[tuple[float, float]]:
    """Return false alarms and AUROC of each repeat, means over the classes, in percent."""
    means = []
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        of_classes = []
        for known in np.unique(y):
            rows = random.permutation(np.flatnonzero(y == known))
            fit, new = np.split(rows, [len(rows) // 2])
            detector = make().fit(X[fit])
            familiar, others = (detector.decision_function(X[r]) for r in (new, y != known))
            truth = np.repeat([1, 0], [len(familiar), len(others)])
            area = roc_auc_score(truth, np.concatenate([familiar, others]))
            of_classes.append([np.mean(familiar < 0), area])
        means.append(tuple(100 * np.mean(of_classes, axis=0)))
    return means


def show(title: str, rows: dict[str, list[list[float]]]) -> None:
    """Print a table as it stands in the guide: of each model the repeats of every set."""
    print(f"\n| {title} | {' | '.join(SETS)} |\n|---|{'---:|' * len(SETS)}")
    for name, sets in rows.items():
        cells = [
            f"{np.mean(values):.1f}\u00a0±\u00a0{np.std(values, ddof=1):.1f}"
            if np.all(np.isfinite(values))
            else "–"
            for values in sets
        ]
        print(f"| {name.strip()} | {' | '.join(cells)} |")


def main(repeats: int) -> None:
    """Measure everything and print it."""
    data = [load(return_X_y=True) for load in SETS.values()]
    rows = {
        name: [accuracies(make, X, y, repeats) for X, y in data]
        for name, make in CLASSIFIERS.items()
    }
    show("accuracy, %", rows)
    both = {
        name: [detected(make, X, y, repeats) for X, y in data] for name, make in DETECTORS.items()
    }
    for place, title in enumerate(("known samples rejected, %", "AUROC, %")):
        show(title, {n: [[v[place] for v in s] for s in sets] for n, sets in both.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    warnings.simplefilter("ignore")  # of covariances without full rank in scikit-learn
    main(parser.parse_args().repeats)
