"""What was run, as the page tells it: options and facts by the names people use."""

from __future__ import annotations

from typing import Any

from mahalens.report.catalogue import model_label, models_in_order
from mahalens.report.numbers import anything, duration, interval, is_number
from mahalens.report.records import RunRecords
from mahalens.report.views import view_of

SOLVERS = {"adam": "Adam", "newton": "Newton (second order)"}


def protocol_of(records: RunRecords) -> list[tuple[str, str]]:
    """What was run, as pairs of a name and a value; what a study adds goes by its own name."""
    config, facts = records.config, dict(records.summary.get("facts", {}))
    options = dict(config["options"])
    shown: dict[str, str] = {}

    def show(name: str, value: object) -> None:
        if value is not None and value not in ("", [], ()):
            shown[name] = anything(value)

    if parts := view_of(records.study).parts:
        told = _of_paired(records) if parts.of_data else _of_networks(options, facts, config)
        return [(n, anything(v)) for n, v in told.items() if v is not None and v not in ("", [])]
    if records.study == "ellipsoids":
        _leave_out_unused(options)
    show("Dimension", options.pop("dim", None))
    show("Models", [model_label(m) for m in models_in_order(options.pop("models", []))])
    show("Trials a model", options.pop("trials", None))
    show("Training samples", options.pop("samples", None))
    solver, method = options.pop("solver", None), facts.pop("method", None)
    show("Solver", SOLVERS.get(str(solver), solver))
    if method not in (None, solver):
        show("Method", method)
    show("Epochs", options.pop("epochs", None))
    show("Number type", options.pop("dtype", None))
    show("Seed", options.pop("seed", config.get("seed")))
    show("Device", options.pop("device", config.get("device")))
    show("Threads", config.get("threads"))
    if records.study == "gaussian":
        show("Engine", config.get("engine"))
    if "gaussian" in options:
        show("Gaussian", options.pop("gaussian") or "drawn as in source 000")
    show("Condition number of Σ", facts.pop("condition_number", None))
    ends = [facts.pop(f"{end}_eigenvalue", None) for end in ("smallest", "largest")]
    if all(is_number(end) for end in ends):
        show("Eigenvalues of Σ", interval(ends))
    show("Variance of the target", facts.pop("target_variance", None))
    chance = facts.pop("row_cosine_chance", None)
    if chance is not None:
        show("Row cosine by chance", interval(chance))
    if (drawing := facts.pop("drawing_seconds", None)) is not None:
        show("Time to draw", duration(drawing))
    seconds = facts.pop("seconds", None)
    for name, value in {**options, **facts}.items():
        if name not in ("dim", "solver", "count") or name in options:
            show(name.replace("_", " ").capitalize(), value)
    if seconds is not None:
        show("Time", duration(seconds))
    return list(shown.items())


def _leave_out_unused(options: dict[str, Any]) -> None:
    """Of the ellipsoid study's options, those that the other of its two kinds of run has."""
    searching = ("dim", "solver", "count", "methods", "steps", "noise")
    fitting = ("clusters", "train_size", "shrinkage", "rivals")
    for name in searching if options.get("data") else fitting:
        options.pop(name, None)


def _of_networks(
    options: dict[str, Any], facts: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any]:
    """What a run of a study of networks was told, and what it was run on."""
    models = models_in_order(options.get("models", []), "representation")
    place = str(options.get("engine") or "")
    if place == "dask":
        place = f"over Dask's workers ({options.get('scheduler') or 'started here'})"
    elif place == "local":
        place = "in one process"
    budget, rate = options.get("budget"), options.get("learning_rate")
    return {
        "Data": facts.get("data", options.get("data")),
        "Source of the data": facts.get("source"),
        "Training samples": facts.get("training_samples"),
        "Test samples": facts.get("test_samples"),
        "Inputs": facts.get("inputs"),
        "Classes": facts.get("classes"),
        "Pixels": options.get("pixels"),
        "Largest raw pixel": facts.get("largest_pixel"),
        f"Networks ({len(models)})": "; ".join(model_label(m, "representation") for m in models),
        "Networks from": options.get("networks"),
        "Hidden units": options.get("hidden"),
        "Epochs": options.get("epochs"),
        "Learning rate": f"{rate:g}" if is_number(rate) else None,
        "Optimiser": "gradient descent on all samples at once",
        "Trials a network": options.get("trials"),
        "Trials trained together": options.get("group"),
        "Computed": place,
        "Engine": config.get("engine"),
        "Device": config.get("device"),
        "Threads": config.get("threads"),
        "Budget": "none" if budget is None else duration(budget),
        "Cut to keep the budget": "; ".join(str(cut) for cut in options.get("shortened") or ()),
        "Seed": options.get("seed", config.get("seed")),
        "Time": duration(facts.get("seconds")),
    }


def _of_paired(records: RunRecords) -> dict[str, Any]:
    """What a run of a paired study was told, and what it was run on; new options by their names."""
    config, facts = records.config, dict(records.summary.get("facts", {}))
    options = dict(config["options"])
    models = models_in_order(options.pop("models", []), records.study)
    data = facts.pop("data", None)
    sets = [_set_line(part.title, data, part.part) for part in records.parts()]
    epochs = options.pop("epochs", None)
    told: dict[str, Any] = {
        f"Data ({len(sets)})": "; ".join(sets),
        f"Models ({len(models)})": "; ".join(model_label(m, records.study) for m in models),
        "Trials a model": options.pop("trials", None),
        "Epochs": facts.pop("epochs", epochs),
        "Training samples at most": options.pop("train_size", None),
        "Seed": options.pop("seed", config.get("seed")),
        "Engine": config.get("engine"),
        "Device": config.get("device"),
        "Threads": config.get("threads"),
    }
    options.pop("data", None)
    seconds = facts.pop("seconds", None)
    given = {name: _as_given(value) for name, value in options.items()}
    rest = {name.replace("_", " ").capitalize(): v for name, v in {**given, **facts}.items()}
    time = {"Time, all models together": duration(seconds)} if seconds is not None else {}
    return {**told, **rest, **time}


def _as_given(value: object) -> object:
    """An option as one would type it: 0.05 and not 0.0500.

    >>> _as_given([0.001, 3e-05]), _as_given(128), _as_given("raw")
    (['0.001', '3e-05'], 128, 'raw')
    """
    if isinstance(value, list | tuple):
        return [_as_given(item) for item in value]
    return f"{value:g}" if isinstance(value, float) else value


def _set_line(title: str, data: object, part: str) -> str:
    """A data set with its sizes and where it is from, as far as the summary says."""
    facts = data.get(part) if isinstance(data, dict) else None
    facts = facts if isinstance(facts, dict) else {}
    sizes = [
        f"{anything(facts[name])} {said}"
        for name, said in (
            ("training_samples", "training samples"),
            ("test_samples", "test samples"),
            ("inputs", "inputs"),
            ("classes", "classes"),
        )
        if facts.get(name) is not None
    ]
    source = [f"from {facts['source']}"] if facts.get("source") else []
    told = ", ".join([*sizes, *source])
    return f"{title} ({told})" if told else title
