"""From the measures of all jobs to the records of a run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mahalens.stats import compare_family
from mahalens.studies.claims import Evidence, judge
from mahalens.studies.comparison_lines import flat
from mahalens.studies.folder import (
    COMPARISONS,
    CURVES,
    PLOTS,
    SUMMARY,
    TRIALS,
    WEIGHTS,
    RunFolder,
)
from mahalens.studies.paired.config import Job, name_of, part_of
from mahalens.studies.paired.measures import NON_FINITE, Measures, join, unpack
from mahalens.studies.paired.presentation import presentation_of
from mahalens.studies.paired.study import C, Found, PairedStudy
from mahalens.studies.rows import summary_row

Floats = NDArray[np.float64]


def write_records(
    study: PairedStudy[C],
    config: C,
    folder: RunFolder,
    facts: Mapping[str, Mapping[str, Any]],
    results: Sequence[tuple[Job, Mapping[str, Tensor]]],
) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    found = gather(config.models, [part_of(data) for data in config.data], results)
    for (part, model), own in found.items():
        if own.weights:
            folder.write_tensors(f"{WEIGHTS}/{part}-{model}.safetensors", own.weights)
    columns = ("model", "data", "trial", "status", *study.metrics)
    folder.write_csv(TRIALS, columns, _trial_rows(study, found))
    # In order of the alphabet: files of tensors give their names in any order.
    names = sorted({name for own in found.values() for name in own.curves})
    if names:
        columns = ("model", "data", "trial", "epoch", *names)
        folder.write_csv(CURVES, columns, _curve_rows(found, names))
    compared = compare_models(study, config, found)
    if compared:
        folder.write_csv(COMPARISONS, list(compared[0]), [list(c.values()) for c in compared])
    plots = {
        f"{part}/{model}/{name}": array
        for (part, model), own in found.items()
        for name, array in own.plots.items()
    }
    if plots:
        folder.write_tensors(PLOTS, plots)
    summary = summarise(study, config, found, compared, facts, folder.config.protocol)
    cautions = list(study.cautions(config, found))
    folder.write_json(SUMMARY, summary | {"scaled": folder.config.scaled, "cautions": cautions})


def gather(
    models: Sequence[str],
    parts: Sequence[str],
    results: Sequence[tuple[Job, Mapping[str, Tensor]]],
) -> dict[tuple[str, str], Measures]:
    """The trials of each model on each data set, in the order of the options."""
    pieces: dict[tuple[str, str], list[tuple[int, Measures]]] = {}
    for job, tensors in results:
        for model, own in unpack(tensors).items():
            pieces.setdefault((job.part, model), []).append((job.first, own))
    found = {}
    for key in ((part, model) for part in parts for model in models):
        if key in pieces:
            in_order = sorted(pieces[key], key=lambda piece: piece[0])
            found[key] = join(own for _, own in in_order)
    return found


def summarise(
    study: PairedStudy[C],
    config: C,
    found: Found,
    compared: list[dict[str, Any]],
    facts: Mapping[str, Mapping[str, Any]],
    protocol: str,
) -> dict[str, Any]:
    """The contents of ``summary.json``."""

    def published(metric: str, name: str) -> float | None:
        model, _, part = name.removesuffix(")").partition(" (")
        figure = study.published(metric, model, part)
        return None if figure is None else figure.mean

    evidence = Evidence(
        trials={
            (name_of(model, part), metric): values_of(own, metric)
            for (part, model), own in found.items()
            for metric in study.metrics
        },
        facts={},
        published=published,
    )
    return {
        "study": study.name,
        "protocol": protocol,
        "facts": {
            "data": {part: dict(told) for part, told in facts.items()},
            "epochs": config.epochs,
            "seconds": sum(own.seconds for own in found.values()),
        },
        "outcomes": [_outcome(study, *key, own) for key, own in found.items()],
        "rows": [row for key, own in found.items() for row in _rows(study, *key, own)],
        "comparisons": compared,
        "claims": judge(study.claims(config), evidence),
    }


def compare_models(study: PairedStudy[C], config: C, found: Found) -> list[dict[str, Any]]:
    """All tests between models, as flat lines; a family is one metric on one data set."""
    lines: list[dict[str, Any]] = []
    for part in dict.fromkeys(part for part, _ in found):
        for metric in study.tested:
            values = {
                name_of(model, part): values_of(own, metric)
                for (where, model), own in found.items()
                if where == part and metric in own.metrics
            }
            named = ((name_of(a, part), name_of(b, part)) for a, b in study.pairs(config))
            pairs = [(a, b) for a, b in named if a in values and b in values]
            lines += [
                {"family": part, "metric": metric} | flat(result)
                for result in compare_family(values, pairs)
            ]
    return lines


def values_of(own: Measures, metric: str) -> Floats:
    """One number per trial ``[T]``; NaN throughout for what the model has no number of."""
    given = own.metrics.get(metric)
    if given is None:
        return np.full(own.trials, np.nan)
    return given.double().numpy()


def _best(study: PairedStudy[C], own: Measures) -> int | None:
    """The trial that is best by the study's first metric."""
    shown = presentation_of(study.name)
    if shown is None:
        return None
    values = values_of(own, shown.primary)
    if not np.isfinite(values).any():
        return None
    high = study.metrics[shown.primary].better == "high"
    return int(np.nanargmax(values) if high else np.nanargmin(values))


def _outcome(study: PairedStudy[C], part: str, model: str, own: Measures) -> dict[str, Any]:
    statuses = own.statuses
    return {
        "model": model,
        "group": {"data": part},
        "trials": own.trials,
        "statuses": dict(Counter(statuses)),
        "non_finite": [t for t, status in enumerate(statuses) if status == NON_FINITE],
        "best_trial": _best(study, own),
        "seconds": own.seconds,
    }


def _rows(study: PairedStudy[C], part: str, model: str, own: Measures) -> Iterator[dict[str, Any]]:
    best = _best(study, own)
    for metric in study.metrics:
        if metric not in own.metrics:
            continue
        figure = study.published(metric, model, part)
        yield summary_row(
            {"data": part},
            model,
            metric,
            values_of(own, metric),
            best=best,
            published=None if figure is None else figure.mean,
            published_detail=None if figure is None else figure.detail(),
        )


def _trial_rows(study: PairedStudy[C], found: Found) -> Iterator[list[Any]]:
    for (part, model), own in found.items():
        columns = [values_of(own, metric) for metric in study.metrics]
        for trial, status in enumerate(own.statuses):
            yield [model, part, trial, status, *(float(values[trial]) for values in columns)]


def _curve_rows(found: Found, names: Sequence[str]) -> Iterator[list[Any]]:
    for (part, model), own in found.items():
        if own.epochs is None:
            continue
        columns = [own.curves.get(name) for name in names]
        for trial in range(own.trials):
            for place, epoch in enumerate(own.epochs.tolist()):
                values = (None if c is None else float(c[trial, place]) for c in columns)
                yield [model, part, trial, epoch, *values]
