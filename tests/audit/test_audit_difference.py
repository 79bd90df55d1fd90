"""What changed between two audits: planted changes are told, and nothing else."""

import math

import msgspec
import pytest
import torch
from records import changed, example_record

from mahalens.auditing.records.difference import Change, difference

FC1 = 1  # where it stands in the example


@pytest.fixture(scope="module")
def record():
    return example_record()


def layer(found, name="fc1"):
    return next(one for one in found.layers if one.name == name)


def test_nothing_changed(record):
    found = record.diff(example_record())
    assert not found.changed
    assert str(found) == "nothing changed"
    assert not any(row["changed"] for row in found.to_rows())


def test_rounding_is_no_change(record):
    planes = record.layers[FC1].hyperplanes.mean_spreads
    after = changed(
        record,
        FC1,
        whitening__sphericity=record.layers[FC1].whitening.sphericity * (1 + 1e-9),
        hyperplanes__mean_spreads=planes + 1e-7,
    )
    assert str(difference(record, after)) == "nothing changed"


def test_units_that_died_revived_and_became_rare(record):
    rare = record.layers[FC1].units.rare
    assert 6 in rare["0.01"]
    after = changed(
        record,
        FC1,
        units__dead=(0, 9),
        units__rare={"0.05": (*rare["0.05"], 0, 9, 30), "0.01": (0, 9)},
    )
    found = layer(difference(record, after))
    assert found.died == (0, 9)
    assert found.revived == (6,)
    assert found.became_rare == {"0.05": (0, 9, 30), "0.01": (0, 9)}
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n"
        "  fc1: 2 died (0, 9); 1 came back to life (6); 1 now active on less than 0.05 (30)"
    )
    back = layer(difference(after, record))
    assert (back.died, back.revived) == ((6,), (0, 9))


def test_pairs(record):
    after = changed(record, FC1, pairs__mirrored=((2, 5), (10, 11)), pairs__duplicate=())
    found = layer(difference(record, after))
    assert (found.mirrored_gained, found.mirrored_lost) == (((10, 11),), ())
    assert (found.duplicate_gained, found.duplicate_lost) == ((), ((3, 7),))
    assert "1 mirrored new (10-11); 1 duplicate lost (3-7)" in str(difference(record, after))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("whitening__sphericity", "sphericity"),
        ("whitening__precision_error", "precision_error"),
        ("whitening__input_rank", "input_rank"),
        ("whitening__output_rank", "output_rank"),
        ("verdict__score", "score"),
        ("units__silent_share", "silent_share"),
        ("perturbation__index", "perturbation_index"),
    ],
)
def test_numbers(record, field, name):
    found = difference(record, changed(record, FC1, **{field: 0.125}))
    assert layer(found).numbers[name].after == 0.125
    assert [n for n, change in layer(found).numbers.items() if change.changed] == [name]
    assert f"{name.replace('_', ' ')} " in str(found)
    assert "-> 0.125" in str(found)
    (row,) = [row for row in found.to_rows() if row["changed"]]
    assert (row["layer"], row["what"], row["after"]) == ("fc1", name, 0.125)


def test_a_verdict_comes_first(record):
    after = changed(record, FC1, verdict__word="broken", verdict__score=None)
    assert str(difference(record, after)) == (
        "1 of 4 layers changed\n  fc1: distance-like -> broken; score 0.4 -> unknown"
    )


def test_hyperplanes_that_moved(record):
    spreads = record.layers[FC1].hyperplanes.mean_spreads.clone()
    spreads[3] += 1.5
    found = difference(record, changed(record, FC1, hyperplanes__mean_spreads=spreads))
    wanted = torch.zeros(32)
    wanted[3] = 1.5
    torch.testing.assert_close(layer(found).shift, wanted)
    assert "moved by 0 spreads (median), at most 1.5 (3)" in str(found)


def test_accuracy(record):
    found = difference(record, msgspec.structs.replace(record, accuracy=0.5))
    assert str(found) == "accuracy 0.925 -> 0.5"
    assert found.to_rows()[0] == {
        "layer": "",
        "what": "accuracy",
        "before": 0.925,
        "after": 0.5,
        "changed": True,
    }


def test_layers_in_one_only(record):
    after = msgspec.structs.replace(record, layers=record.layers[1:])
    assert difference(record, after).removed == ("conv",)
    assert str(difference(record, after)) == "gone: conv"
    assert difference(after, record).added == ("conv",)
    assert str(difference(after, record)) == "new: conv"


def test_another_number_of_units_is_compared_by_numbers_of_the_layer(record):
    found = difference(record, example_record(units=16))
    first = layer(found)
    assert first.units == Change(32, 16)
    assert first.shift is None
    assert first.died == ()
    assert any("another number of units" in note for note in first.notes)
    assert "fc1: units 32 -> 16" in str(found)
    assert "inputs 32 -> 16" in str(found)  # of fc2


def test_other_data_and_settings_are_noted(record):
    data = msgspec.structs.replace(record.data, samples=7, source="elsewhere")
    options = msgspec.structs.replace(record.settings, rows_kept=9)
    after = msgspec.structs.replace(record, data=data, settings=options, model="Old")
    found = difference(record, after)
    assert not found.changed
    assert str(found).splitlines() == [
        "nothing changed",
        "note: the two audits differ in data (samples, source), not only in the network",
        "note: the two audits differ in settings (rows kept), not only in the network",
        "note: the models are called Net and Old",
    ]


def test_long_lists_are_cut(record):
    found = difference(record, changed(record, FC1, units__dead=tuple(range(20))))
    assert "19 died (0, 1, 2, 3, 4, 5, 7, 8, and 11 more)" in str(found)


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


def test_without_labels_or_pictures():
    a = example_record(classes=0, image=False)
    assert str(a.diff(a)) == "nothing changed"
    assert a.diff(example_record(classes=3, image=False)).changed
