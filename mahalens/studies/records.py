"""From the measures of all jobs to the records of a run folder."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from mahalens.stats import compare_family, summarise
from mahalens.studies.claims import Evidence, is_finite, judge
from mahalens.studies.folder import (
    COMPARISONS,
    CURVES,
    PLOTS,
    SUMMARY,
    TENSORBOARD,
    TRIALS,
    WEIGHTS,
    RunFolder,
)
from mahalens.studies.study import (
    DONE,
    NON_FINITE,
    SOURCES,
    C,
    Job,
    Measures,
    Results,
    Study,
    name_of,
    variant_name,
)

_PARTS = ("metrics", "plots", "trial_plots", "weights")
_SUMMARY = ("mean", "std", "variance", "median", "min", "max", "n", "ci95")


def pack(measures: Mapping[str, Measures]) -> dict[str, Tensor]:
    """Return the measures of several models as named tensors, for a file."""
    tensors: dict[str, Tensor] = {}
    for place, (model, measured) in enumerate(measures.items()):
        columns = {name: list(values) for name, values in measured.columns.items()}
        about = {
            "seconds": measured.seconds,
            "chain": measured.chain,
            "statuses": list(measured.statuses),
        }
        text = json.dumps({**about, "place": place, "columns": columns}).encode()
        tensors[f"{model}|about|"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for part in _PARTS:
            for name, values in getattr(measured, part).items():
                tensors[f"{model}|{part}|{name}"] = values
        for name, (steps, values) in measured.curves.items():
            tensors[f"{model}|steps|{name}"] = steps
            tensors[f"{model}|curves|{name}"] = values
    # Copies, as measures may be views of one another.
    form = {"memory_format": torch.contiguous_format}
    return {name: values.detach().cpu().clone(**form) for name, values in tensors.items()}


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Measures]:
    """Return the measures that :func:`pack` made tensors of."""
    models: dict[str, dict[str, dict[str, Tensor]]] = {}
    for key in sorted(tensors):  # files of tensors give their names in any order
        model, part, name = key.split("|", 2)
        models.setdefault(model, {}).setdefault(part, {})[name] = tensors[key]
    abouts = {m: json.loads(bytes(parts["about"][""].tolist())) for m, parts in models.items()}
    measures = {}
    for model in sorted(models, key=lambda model: abouts[model].pop("place")):
        about, parts = abouts[model], models[model]
        steps = parts.get("steps", {})
        curves = {name: (steps[name], values) for name, values in parts.get("curves", {}).items()}
        tensors_of: dict[str, Any] = {part: parts.get(part, {}) for part in _PARTS}
        measures[model] = Measures(**about, **tensors_of, curves=curves)
    return measures


def join(pieces: Sequence[Measures]) -> Measures:
    """Return the trials of several jobs, one after the other; plots are those of the first.

    Metrics and curves that a job lacks are NaN for its trials; plots of trials and weights are
    joined only if all jobs have them.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first

    def names_of(part: str) -> list[str]:
        return list(dict.fromkeys(name for piece in pieces for name in getattr(piece, part)))

    def together(part: str) -> dict[str, Tensor]:
        every = [getattr(piece, part) for piece in pieces]
        names = [name for name in names_of(part) if all(name in own for own in every)]
        return {name: torch.cat([own[name] for own in every]) for name in names}

    def metric(name: str) -> Tensor:
        like = next(piece.metrics[name] for piece in pieces if name in piece.metrics)
        return torch.cat(
            [p.metrics.get(name, like.new_full((p.trials,), math.nan)) for p in pieces]
        )

    def curve(name: str) -> tuple[Tensor, Tensor]:
        steps, values = next(piece.curves[name] for piece in pieces if name in piece.curves)
        return _aligned(
            [p.curves.get(name, (steps[:0], values.new_empty(p.trials, 0))) for p in pieces]
        )

    return Measures(
        metrics={name: metric(name) for name in names_of("metrics")},
        seconds=sum(piece.seconds for piece in pieces),
        curves={name: curve(name) for name in names_of("curves")},
        plots=first.plots,
        trial_plots=together("trial_plots"),
        weights=together("weights"),
        chain=first.chain,
        columns={n: [v for piece in pieces for v in piece.columns[n]] for n in first.columns},
        statuses=[status for piece in pieces for status in piece.statuses],
    )


def select(measures: Measures, rows: Sequence[int]) -> Measures:
    """Return the measures of some trials; the time is their share of all.

    Plots belong to the first trial, and are dropped with it.
    """

    def some(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: values[list(rows)] for name, values in tensors.items()}

    return replace(
        measures,
        metrics=some(measures.metrics),
        seconds=measures.seconds * len(rows) / measures.trials,
        curves={name: (steps, v[list(rows)]) for name, (steps, v) in measures.curves.items()},
        plots=measures.plots if 0 in rows else {},
        trial_plots=some(measures.trial_plots),
        weights=some(measures.weights),
        columns={name: [values[row] for row in rows] for name, values in measures.columns.items()},
        statuses=[measures.statuses[row] for row in rows] if measures.statuses else (),
    )


def _aligned(curves: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Put the curves of several jobs on one axis; NaN where a job had ended before."""
    steps = torch.cat([steps for steps, _ in curves]).unique()
    rows = []
    for places, values in curves:
        row = values.new_full((len(values), len(steps)), math.nan)
        row[:, torch.searchsorted(steps, places)] = values
        rows.append(row)
    return steps, torch.cat(rows)


def gather(study: Study[C], config: C, jobs: Sequence[tuple[Job, Mapping[str, Tensor]]]) -> Results:
    """Put the trials of each model on each variant together, in the order of the options."""
    pieces: dict[tuple[str, str], list[tuple[int, Measures]]] = {}
    for job, tensors in jobs:
        for model, measured in unpack(tensors).items():
            key = (variant_name(job.variant), model)
            pieces.setdefault(key, []).append((job.first, measured))
    models = getattr(config, "models", ()) or dict.fromkeys(model for _, model in pieces)
    joined = {}
    for variant in map(variant_name, study.variants(config)):
        for model in models:
            if several := pieces.get((variant, model)):
                in_order = sorted(several, key=lambda piece: piece[0])
                joined[variant, model] = join([measures for _, measures in in_order])
    return Results(joined, {})


def pack_measures(measures: Mapping[tuple[str, str], Measures]) -> dict[str, Tensor]:
    """Return everything measured but the weights as named tensors, for ``measures.safetensors``."""
    variants = json.dumps([variant for variant, _ in measures]).encode()
    tensors = {"variants": torch.frombuffer(bytearray(variants), dtype=torch.uint8)}
    for place, ((_, model), measured) in enumerate(measures.items()):
        packed = pack({model: replace(measured, weights={})})
        tensors |= {f"{place:04d}|{name}": tensor for name, tensor in packed.items()}
    return tensors


def unpack_measures(tensors: Mapping[str, Tensor]) -> dict[tuple[str, str], Measures]:
    """Return the measures that :func:`pack_measures` made tensors of."""
    variants = json.loads(bytes(tensors["variants"].tolist()))
    pieces: list[dict[str, Tensor]] = [{} for _ in variants]
    for key, tensor in tensors.items():
        if key != "variants":
            place, name = key.split("|", 1)
            pieces[int(place)][name] = tensor
    joined = {}
    for variant, piece in zip(variants, pieces, strict=True):
        for model, measured in unpack(piece).items():
            joined[variant, model] = measured
    return joined


def statuses_of(measures: Measures) -> list[str]:
    """Return how each trial ended."""
    if measures.statuses:
        return list(measures.statuses)
    columns = [values for name, values in measures.metrics.items() if name != "seconds"]
    columns = columns or list(measures.metrics.values())
    finite = torch.stack([values.isfinite() for values in columns]).any(0)
    return [DONE if ended else NON_FINITE for ended in finite.tolist()]


def non_finite(results: Results) -> Iterator[str]:
    """Yield a line about each model with trials that ran away."""
    for (variant, model), measured in results.measures.items():
        lost = [t for t, status in enumerate(statuses_of(measured)) if status == NON_FINITE]
        if lost:
            which = ", ".join(map(str, lost[:10])) + (", ..." if len(lost) > 10 else "")
            plural = "s" if len(lost) > 1 else ""
            yield f"{name_of(model, variant)}: trial{plural} {which} turned non-finite, and stopped"


def weights_file(variant: str, model: str) -> str:
    """Return the name of the file with a model's weights."""
    return "-".join(filter(None, (variant, model))) + ".safetensors"


def write_records(study: Study[C], config: C, folder: RunFolder, results: Results) -> None:
    """Write everything the report needs; the summary last, as it marks the run as finished."""
    measures = results.measures
    for (variant, model), measured in measures.items():
        if measured.weights:
            file = f"{WEIGHTS}/{weights_file(variant, model)}"
            folder.write_tensors(file, measured.weights, chain=measured.chain or None)
    for file, tensors in results.weights.items():
        folder.write_tensors(f"{WEIGHTS}/{file}.safetensors", tensors)
    by = (study.variant,) if study.variant else ()
    metrics = [
        m for m in study.metrics if any(m in measured.metrics for measured in measures.values())
    ]
    columns = ("model", *by, "trial", "status", *study.columns, *metrics)
    folder.write_csv(TRIALS, columns, _trial_rows(study, measures, metrics))
    names = sorted({name for measured in measures.values() for name in measured.curves})
    if names:
        columns = ("model", *by, "trial", study.along, *names)
        folder.write_csv(CURVES, columns, _curve_rows(study, measures, names))
    for file, (header, rows) in results.tables.items():
        folder.write_csv(file, header, rows)
    compared = compare_models(study, config, results)
    if compared:
        folder.write_csv(COMPARISONS, list(compared[0]), [list(c.values()) for c in compared])
    plots = dict(results.plots)
    for (variant, model), measured in measures.items():
        for name, array in {**measured.plots, **measured.trial_plots}.items():
            plots["/".join(filter(None, (variant, model, name)))] = array
    if plots:
        folder.write_tensors(PLOTS, plots)
    if config.tensorboard:
        write_events(study, folder, results)
    folder.write_json(SUMMARY, summary_of(study, config, folder, results, compared))


def write_events(study: Study[C], folder: RunFolder, results: Results) -> None:
    """Write curves and final metrics as TensorBoard event files, one folder per model and variant.

    Scalars over epochs are ``test_accuracy/mean`` and the same for every trial; the final metrics
    are a table.
    """
    from torch.utils.tensorboard import SummaryWriter

    for old in (folder.path / TENSORBOARD).glob("*/events.out.tfevents.*"):
        with contextlib.suppress(OSError):  # of a run that was stopped while it wrote
            old.unlink()
    for (variant, model), measured in results.measures.items():
        name = "-".join(filter(None, (variant, model)))
        with SummaryWriter(str(folder.path / TENSORBOARD / name)) as writer:
            for metric, (steps, values) in measured.curves.items():
                lines = {"mean": values.double().nanmean(0)}
                lines |= {f"trial {trial:02d}": row for trial, row in enumerate(values)}
                for label, line in lines.items():
                    for step, value in zip(steps.tolist(), line.tolist(), strict=True):
                        if math.isfinite(value):
                            writer.add_scalar(f"{metric}/{label}", value, step)
            writer.add_text("final metrics", _event_table(study, measured))


def _event_table(study: Study[C], measures: Measures) -> str:
    trials = range(measures.trials)
    lines = ["| metric | " + " | ".join(f"trial {trial}" for trial in trials) + " |"]
    lines.append("|---|" + "---:|" * measures.trials)
    for name in study.metrics:
        if name in measures.metrics:
            values = measures.values(name).tolist()
            cells = " | ".join(f"{v:.4g}" if math.isfinite(v) else "–" for v in values)
            lines.append(f"| {study.metrics[name].label} | {cells} |")
    return "\n".join(lines)


def summary_of(
    study: Study[C],
    config: C,
    folder: RunFolder,
    results: Results,
    compared: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the contents of ``summary.json``."""
    measures = results.measures
    facts = {**results.facts, "seconds": sum(measured.seconds for measured in measures.values())}
    if "seconds" in results.facts:  # which include more than the jobs
        facts["seconds"] += results.facts["seconds"]

    def published(metric: str, model: str, variant: str) -> float | None:
        value = study.published(config, metric, model, variant)
        return None if value is None else value.mean

    evidence = Evidence(
        trials={
            (variant, model, metric): measured.values(metric)
            for (variant, model), measured in measures.items()
            for metric in study.metrics
        }
        | results.evidence,
        facts=facts,
        published_mean=published,
        basins={
            key: [str(basin) for basin in measured.columns["basin"]]
            for key, measured in measures.items()
            if "basin" in measured.columns
        },
    )
    asked = study.asked or tuple(map(variant_name, study.variants(config)))
    return {
        "study": study.name,
        "protocol": folder.config.protocol,
        "facts": facts,
        "outcomes": [_outcome(study, *key, measured) for key, measured in measures.items()],
        "rows": [
            row
            for key, measured in measures.items()
            for row in _rows(study, config, *key, measured)
        ],
        "comparisons": compared,
        "claims": judge(
            study.claims_of(config), evidence, study=study.name, variants=asked, sources=SOURCES
        ),
        "scaled": folder.config.scaled,
        "cautions": results.cautions,
    }


def compare_models(study: Study[C], config: C, results: Results) -> list[dict[str, Any]]:
    """Test models against each other; a family is one metric on one variant.

    Each result is one flat line of ``comparisons.csv``.
    """
    variants = dict.fromkeys(variant for variant, _ in results.measures)
    families: dict[str, list[tuple[str, str]]] = {
        variant: [(name_of(a, variant), name_of(b, variant)) for a, b in study.pairs]
        for variant in variants
    }
    if study.across is not None and len(variants) > 1:
        families["across"] = list(study.across(config))
    lines: list[dict[str, Any]] = []
    for family, named in families.items():
        for metric in study.tested:
            values = {
                name_of(model, variant): measured.values(metric)
                for (variant, model), measured in results.measures.items()
                if metric in measured.metrics
            }
            pairs = [(a, b) for a, b in named if a in values and b in values]
            lines += [
                {"family": family, "metric": metric} | _flat(result)
                for result in compare_family(values, pairs)
            ]
    return lines


def _flat(result: msgspec.Struct) -> dict[str, Any]:
    """Return a comparison as one line of a table: nested parts and intervals spread out."""
    line: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(result).items():
        if isinstance(value, msgspec.Struct):
            line |= _flat(value)
        elif name.endswith("ci95") or isinstance(value, tuple):
            low, high = value if value is not None else (None, None)
            line |= {f"{name}_low": low, f"{name}_high": high}
        else:
            line[name] = value
    return line


def _best(study: Study[C], measures: Measures) -> int | None:
    """Return the trial that is best by the study's primary metric."""
    primary = study.primary_of(measures.metrics)
    values = measures.values(primary)
    if not np.isfinite(values).any():
        return None
    high = study.metrics[primary].better == "high"
    return int(np.nanargmax(values) if high else np.nanargmin(values))


def _outcome(study: Study[C], variant: str, model: str, measures: Measures) -> dict[str, Any]:
    statuses = statuses_of(measures)
    outcome: dict[str, Any] = {
        "model": model,
        **({"group": {study.variant: variant}} if study.variant else {}),
        "trials": measures.trials,
        "statuses": dict(Counter(statuses)),
        "non_finite": [t for t, status in enumerate(statuses) if status == NON_FINITE],
        "best_trial": _best(study, measures),
        "seconds": measures.seconds,
    }
    if "basin" in measures.columns:
        outcome["basins"] = dict(Counter(filter(None, measures.columns["basin"])))
    return outcome


def _rows(
    study: Study[C], config: C, variant: str, model: str, measures: Measures
) -> Iterator[dict[str, Any]]:
    best = _best(study, measures)
    group = study.group(config, variant) if study.group is not None else {study.variant: variant}
    for metric in study.metrics:
        if metric not in measures.metrics:
            continue
        values = measures.values(metric)
        summary = summarise(values)
        published = study.published(config, metric, model, variant)
        yield {
            "group": group,
            "model": model,
            "metric": metric,
            **{name: getattr(summary, name) for name in _SUMMARY},
            "best": None if best is None else is_finite(float(values[best])),
            "published": None if published is None else published.mean,
            "published_detail": None if published is None else published.detail(),
        }


def _trial_rows(
    study: Study[C], measures: Mapping[tuple[str, str], Measures], metrics: Sequence[str]
) -> Iterator[list[Any]]:
    for (variant, model), measured in measures.items():
        columns = [measured.values(metric) for metric in metrics]
        place = (model, variant) if study.variant else (model,)
        for trial, status in enumerate(statuses_of(measured)):
            yield [
                *(*place, trial, status),
                *(measured.columns[name][trial] for name in study.columns),
                *(float(values[trial]) for values in columns),
            ]


def _curve_rows(
    study: Study[C], measures: Mapping[tuple[str, str], Measures], names: Sequence[str]
) -> Iterator[list[Any]]:
    """Yield all curves side by side; a step may have a number of some of them alone."""
    for (variant, model), measured in measures.items():
        curves = [measured.curves.get(name) for name in names]
        place = (model, variant) if study.variant else (model,)
        for trial in range(measured.trials):
            seen = [
                {} if c is None else dict(zip(c[0].tolist(), c[1][trial].tolist(), strict=True))
                for c in curves
            ]
            for step in sorted({step for curve in seen for step in curve}):
                values = [curve.get(step) for curve in seen]
                if any(value is not None and math.isfinite(value) for value in values):
                    yield [*place, trial, step, *values]
