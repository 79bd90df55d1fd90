"""The claims of source 000 and of mechanism 1 of source 001."""

from __future__ import annotations

from mahalens.studies.claims import AboveChance, Average, Both, Claim, Lower, TrialShare

ADAM, NEWTON = {"solver": "adam"}, {"solver": "newton"}

_RECOVERED = TrialShare("gram_precision_error", "abs", "below", 0.01)
_ROWS_ARE_EIGENVECTORS = AboveChance("row_cosine", "abs", 0.9, "row_cosine_chance")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "000/abs-beats-sigmoid",
        "000",
        "MD_Abs learns the distance better than MD_Sigmoid.",
        Lower("train_mse", "abs", "sigmoid"),
    ),
    Claim(
        "000/relu-beats-sigmoid",
        "000",
        "MD_ReLU learns the distance better than MD_Sigmoid.",
        Lower("train_mse", "relu", "sigmoid"),
    ),
    Claim(
        "000/sigmoid-performs-badly",
        "000",
        "MD_Sigmoid does not approximate the distance well: it leaves more than half of its "
        "variance unexplained.",
        Average("test_mse", "sigmoid", "above", 0.5, per="target_variance"),
    ),
    Claim(
        "000/relu-equals-abs",
        "000",
        "ReLU pairs do the work of Abs: MD_ReLU explains 99 % of the variance wherever it is "
        "trained, as MD_Abs can.",
        Average("test_mse", "relu", "below", 0.01, per="target_variance"),
    ),
    Claim(
        "000/adam-converged",
        "000",
        "The epochs ensure convergence: over the last tenth of them the loss of MD_Abs changes by "
        "less than 1 %.",
        Both(
            TrialShare("late_decrease", "abs", "below", 0.01),
            TrialShare("late_decrease", "abs", "above", -0.01),
        ),
        needs=ADAM,
    ),
    Claim(
        "000/abs-recovers-precision-adam",
        "000",
        "Trained with Adam, WᵀW of MD_Abs is Σ⁻¹ within 1 %.",
        _RECOVERED,
        needs=ADAM,
    ),
    Claim(
        "000/abs-recovers-precision-newton",
        "000",
        "Trained until convergence, WᵀW of MD_Abs is Σ⁻¹ within 1 %.",
        _RECOVERED,
        needs=NEWTON,
    ),
    Claim(
        "000/abs-hyperplanes-through-mean",
        "000",
        "The hyperplanes of MD_Abs pass through the mean: within a tenth of the spread.",
        TrialShare("mean_distance_spread", "abs", "below", 0.1),
    ),
    Claim(
        "000/relu-hyperplanes-through-mean",
        "000",
        "The hyperplanes of MD_ReLU pass through the mean: within a tenth of the spread.",
        TrialShare("mean_distance_spread", "relu", "below", 0.1),
    ),
    Claim(
        "000/relu-units-pair-up",
        "000",
        "ReLU units form mirrored pairs: more than half of the D possible ones.",
        Average("mirrored_pairs", "relu", "above", 0.5, per="dim"),
    ),
    Claim(
        "000/abs-whitens",
        "000",
        "The layer of MD_Abs whitens the data: sphericity norm below 0.1.",
        TrialShare("sphericity", "abs", "below", 0.1),
    ),
    Claim(
        "000/eigenvectors-are-rows",
        "000",
        "The eigenvectors of Σ can be read off the rows of W (MD_Abs).",
        _ROWS_ARE_EIGENVECTORS,
    ),
    Claim(
        "000/eigenvalues-are-row-lengths",
        "000",
        "The eigenvalues of Σ can be read off the lengths of the rows (MD_Abs), within 10 %.",
        TrialShare("row_eigenvalue_error", "abs", "below", 0.1),
    ),
    Claim(
        "000/gram-holds-eigenstructure",
        "000",
        "WᵀW as a whole holds the eigenstructure (MD_Abs): eigenvalues within 1 %.",
        TrialShare("gram_eigenvalue_error", "abs", "below", 0.01),
    ),
    Claim(
        "000/ground-truth-whitens",
        "000",
        "The analytic model whitens exactly: sphericity norm below 0.01.",
        TrialShare("sphericity", "ground-truth", "below", 0.01, fewest=1),
    ),
    Claim(
        "001/abs-layer-measures-mahalanobis",
        "001",
        "Mechanism 1: trained linear nodes with Abs measure the Mahalanobis distance, explaining "
        "99.9 % of its variance on new data.",
        Average("test_mse", "abs", "below", 0.001, per="target_variance"),
    ),
    Claim(
        "001/whitening-without-principal-components",
        "001",
        "Mechanism 1: the network learns directions that whiten the data without being its "
        "principal components.",
        Both(TrialShare("sphericity", "abs", "below", 0.1), _ROWS_ARE_EIGENVECTORS, negated=True),
    ),
)
