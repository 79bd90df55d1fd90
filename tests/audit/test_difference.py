"""What changed between two audits: planted changes are shown, and nothing else."""

import math

import msgspec
import pytest
import torch
from records import changed, example_record

from mahalens.auditing.record import Change, difference

FC1 = 1  # where it stands in the example


def layer(comparison, name="fc1"):
    return next(part for part in comparison.layers if part.name == name)


def test_nothing_changed(record):
    first = record.layers[FC1]
    rounded = changed(
        record,
        FC1,
        whitening__sphericity=first.whitening.sphericity * (1 + 1e-9),
        hyperplanes__mean_spreads=first.hyperplanes.mean_spreads + 1e-7,
    )
    bare = example_record(classes=0, image=False)
    for before, after in ((record, example_record()), (record, rounded), (bare, bare)):
        comparison = before.diff(after)
        assert not comparison.changed
        assert str(comparison) == "nothing changed"
        assert not any(row["changed"] for row in comparison.to_rows())
    assert bare.diff(example_record(classes=3, image=False)).changed


def test_units_that_died_revived_and_became_rare(record):
    rare = record.layers[FC1].units.rare
    assert 6 in rare["0.01"]
    after = changed(
        record,
        FC1,
        units__dead=(0, 9),
        units__rare={"0.05": (*rare["0.05"], 0, 9, 30), "0.01": (0, 9)},
    )
    part = layer(difference(record, after))
    assert (part.died, part.revived) == ((0, 9), (6,))
    assert part.became_rare == {"0.05": (0, 9, 30), "0.01": (0, 9)}
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n"
        "  fc1: 2 died (0, 9); 1 came back to life (6); 1 now active on less than 0.05 (30)"
    )
    back = layer(difference(after, record))
    assert (back.died, back.revived) == ((6,), (0, 9))
    many = difference(record, changed(record, FC1, units__dead=tuple(range(20))))
    assert "19 died (0, 1, 2, 3, 4, 5, 7, 8, and 11 more)" in str(many)


def test_pairs(record):
    after = changed(record, FC1, pairs__mirrored=((2, 5), (10, 11)), pairs__duplicate=())
    part = layer(difference(record, after))
    assert (part.mirrored_gained, part.mirrored_lost) == (((10, 11),), ())
    assert (part.duplicate_gained, part.duplicate_lost) == ((), ((3, 7),))
    assert "1 mirrored new (10-11); 1 duplicate lost (3-7)" in str(difference(record, after))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *((f"whitening__{name}", name) for name in ("sphericity", "precision_error")),
        *((f"whitening__{name}", name) for name in ("input_rank", "output_rank")),
        ("verdict__score", "score"),
        ("units__silent_share", "silent_share"),
        ("perturbation__index", "perturbation_index"),
    ],
)
def test_numbers(record, field, name):
    comparison = difference(record, changed(record, FC1, **{field: 0.125}))
    numbers = layer(comparison).numbers
    assert [n for n, change in numbers.items() if change.changed] == [name]
    assert numbers[name].after == 0.125
    assert f"{name.replace('_', ' ')} " in str(comparison)
    assert "-> 0.125" in str(comparison)
    (row,) = [row for row in comparison.to_rows() if row["changed"]]
    assert (row["layer"], row["what"], row["after"]) == ("fc1", name, 0.125)


def test_a_verdict_comes_first(record):
    after = changed(record, FC1, verdict__word="broken", verdict__score=None)
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n  fc1: distance-like -> broken; score 0.4 -> unknown"
    )


def test_hyperplanes_that_moved(record):
    spreads = record.layers[FC1].hyperplanes.mean_spreads.clone()
    spreads[3] += 1.5
    comparison = difference(record, changed(record, FC1, hyperplanes__mean_spreads=spreads))
    wanted = torch.zeros(32)
    wanted[3] = 1.5
    torch.testing.assert_close(layer(comparison).shift, wanted)
    assert "moved by 0 spreads (median), at most 1.5 (3)" in str(comparison)


def test_accuracy_and_layers_in_one_only(record):
    comparison = difference(record, msgspec.structs.replace(record, accuracy=0.5))
    assert str(comparison) == "accuracy 0.925 -> 0.5"
    row = {"layer": "", "what": "accuracy", "before": 0.925, "after": 0.5, "changed": True}
    assert comparison.to_rows()[0] == row
    fewer = msgspec.structs.replace(record, layers=record.layers[1:])
    assert str(difference(record, fewer)) == "gone: conv"
    assert str(difference(fewer, record)) == "new: conv"


def test_another_number_of_units_is_compared_by_numbers_of_the_layer(record):
    comparison = difference(record, example_record(units=16))
    first = layer(comparison)
    assert (first.units, first.shift, first.died) == (Change(32, 16), None, ())
    assert any("another number of units" in note for note in first.notes)
    assert "fc1: units 32 -> 16" in str(comparison)
    assert "inputs 32 -> 16" in str(comparison)  # of fc2


def test_other_data_and_settings_are_noted(record):
    data = msgspec.structs.replace(record.data, samples=7, source="elsewhere")
    options = msgspec.structs.replace(record.settings, rows_kept=9)
    names = {"model": "Old", "mahalens": "0.1"}
    after = msgspec.structs.replace(record, data=data, settings=options, **names)
    assert str(difference(record, after)).splitlines() == [
        "nothing changed",
        "note: the two audits differ in data (samples, source), not only in the network",
        "note: the two audits differ in settings (rows kept), not only in the network",
        "note: the models are called Net and Old",
        "note: made by mahalens 0.0.0 and 0.1",
    ]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (None, None, False),
        (None, 1.0, True),
        (1.0, None, True),
        (math.nan, math.nan, False),
        (math.nan, 1.0, True),
        (math.inf, math.inf, False),
        (math.inf, 1.0, True),
        (0.0, 1e-12, False),
        (1.0, 1.0 + 1e-5, True),
        (0, 1, True),
    ],
)
def test_changes_of_numbers(before, after, wanted):
    assert Change(before, after).changed is wanted
