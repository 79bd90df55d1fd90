"""The page of an audit as a file: what is in it, what is left out, and that the numbers agree."""

import base64
import hashlib
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from audit_samples import (
    HOSTILE,
    bare_record,
    empty_record,
    example_record,
    hostile_record,
    large_record,
    replaced,
)
from hypothesis import given
from hypothesis import strategies as st

from mahalens.auditing.verdict import Verdict
from mahalens.errors import InputError
from mahalens.report import write_audit_report
from mahalens.report.audit import folder as audit_page
from mahalens.report.audit import payload, tables
from mahalens.report.audit.folder import render_audit_page
from mahalens.report.audit.payload import SHOWN_CLASSES, interesting, nearness, shares, short


def data_in(page):
    """The object that the page carries."""
    found = re.search(r'<script id="audit-data" type="application/json">(.*?)</script>', page, re.S)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def record():
    return example_record()


@pytest.fixture(scope="module")
def page(record):
    return render_audit_page(record)


def test_writes_a_page_and_draws_no_figures_unasked(record, tmp_path):
    path = write_audit_report(record, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "report FOLDER --figures" in path.read_text()


def test_draws_a_figure_per_layer_on_demand(tmp_path):
    folder = tmp_path / "new" / "audit"
    old = folder / "figures" / "layer-009-gone.png"
    other = folder / "figures" / "mine.png"
    old.parent.mkdir(parents=True)
    old.touch(), other.touch()
    path = write_audit_report(example_record(units=48), folder, figures=True)
    assert path == folder / "report.html"
    assert sorted(p.name for p in (folder / "figures").iterdir()) == [
        "layer-001-conv.png",
        "layer-002-fc1.png",
        "layer-003-fc2.png",
        "layer-004-broken.png",
        "mine.png",
        "overview.png",
    ]
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("make", [bare_record, empty_record, hostile_record])
def test_figures_of_odd_records_are_drawn(make, tmp_path):
    write_audit_report(make(), tmp_path, figures=True)
    assert (tmp_path / "figures" / "overview.png").exists() == (make is not empty_record)


def test_something_else_than_a_record_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a record of an audit is wanted, but dict was given"):
        write_audit_report({}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_refers_to_nothing_outside_and_runs_only_its_own_script(page):
    assert not re.search(
        r"""(?:src|href|action)\s*=\s*["']?(?!data:)[a-z]""", page.split("<script")[0]
    )
    assert "@import" not in page
    assert "url(" not in page
    script = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in page or f"'sha256-{digest}'" in page


def test_hostile_names_stay_text():
    page = render_audit_page(hostile_record())
    assert page.count("<script") == 2
    assert "<img" not in page.split("<script")[0]
    assert data_in(page)["layers"][0]["name"] == HOSTILE


def test_the_numbers_are_those_of_the_record(record, page):
    layer, shown = record.layers[1], data_in(page)["layers"][1]
    columns = shown["columns"]
    assert sorted(columns["unit"]) == list(range(layer.units_count))
    for place, unit in enumerate(columns["unit"]):
        for key, tensor in (
            ("mean", layer.units.mean),
            ("std", layer.units.std),
            ("active", layer.units.active),
            ("low", layer.units.quantiles[:, 1]),
            ("median", layer.units.quantiles[:, 3]),
            ("high", layer.units.quantiles[:, 5]),
            ("length", layer.hyperplanes.length),
            ("positive", layer.hyperplanes.positive),
            ("distance", layer.hyperplanes.mean_distance),
        ):
            assert columns[key][place] == pytest.approx(float(tensor[unit]), rel=6e-4), key
        nearest = int(layer.hyperplanes.nearest[unit])
        assert columns["nearest"][place] == nearest
        away = abs(float(layer.hyperplanes.class_spreads[nearest, unit]))
        assert columns["near"][place] == pytest.approx(away, rel=6e-4)
        assert columns["through"][place] == int(layer.hyperplanes.through[unit])
        means = layer.units.class_mean[:, unit].tolist()
        assert columns["class_mean"][place] == pytest.approx(means, rel=6e-4)
        assert bool(columns["flags"][place] & payload.DEAD) == (unit in layer.units.dead)
        assert bool(columns["flags"][place] & payload.RARE) == (unit in layer.units.rare["0.05"])
        assert bool(columns["flags"][place] & payload.ALWAYS) == (unit in layer.units.always)
        near = layer.prototypes.near_sample[unit].tolist()
        assert shown["prototypes"]["near"][place] == near
    assert shown["partners"]["mirrored"] == {"2": [5], "5": [2]}
    assert shown["partners"]["duplicate"] == {"3": [7], "7": [3]}
    histogram = shown["histograms"]["2"]
    assert [row[1] for row in histogram["rows"]] == layer.histograms.counts[2].tolist()
    assert shown["perturbation"]["offset"][0] == [-0.5, pytest.approx(0.625)]
    assert shown["whitening"]["unseen"] == int(torch.isinf(layer.whitening.recovered).sum())


def test_what_is_missing_is_null_and_a_dash():
    page = render_audit_page(bare_record())
    assert "NaN" not in page.split('type="application/json">')[1].split("</script>")[0]
    columns = data_in(page)["layers"][0]["columns"]
    assert columns["mean"] == columns["near"] == [None] * 4
    assert "through" not in columns
    # A column in which all is missing says nothing; one in which some is has a dash there.
    assert "Sphericity</button>" not in page
    assert "<span>–</span></td>" not in page
    page = render_audit_page(example_record())
    assert "Sphericity</button>" in page
    assert "<span>–</span></td>" in page


@pytest.mark.slow
def test_a_large_network_makes_a_page_of_a_few_megabytes_that_says_what_it_left_out():
    record = large_record(layers=24, units=900)
    page = render_audit_page(record)
    assert len(page) < 6_000_000
    layers = data_in(page)["layers"]
    for layer in layers:
        assert layer["count"] == 900
        assert payload.LEAST_UNITS <= len(layer["columns"]["unit"]) < 900
        assert len(layer["prototypes"]["near"]) == len(layer["columns"]["unit"])


def test_of_many_classes_the_page_has_those_that_matter():
    record = large_record(layers=1, units=20, classes=60, samples=600)
    layer = record.layers[0]
    columns = data_in(render_audit_page(record))["layers"][0]["columns"]
    spreads, means = layer.hyperplanes.class_spreads, layer.units.class_mean
    for place, unit in enumerate(columns["unit"]):
        which = columns["class_index"][place]
        nearest = sorted(range(60), key=lambda c: abs(float(spreads[c, unit])))[:8]
        by_mean = sorted(range(60), key=lambda c: float(means[c, unit]))
        assert set(which) == {*nearest, *by_mean[:3], *by_mean[-3:]}
        assert len(which) == len(set(which))
        assert columns["class_mean"][place] == pytest.approx(
            [float(means[c, unit]) for c in which], rel=6e-4
        )
    histogram = payload.histograms_of(layer, [0], 1)["0"]
    assert [row[0] for row in histogram["rows"]][-1] == payload.OTHERS
    assert sum(sum(row[1]) for row in histogram["rows"]) == int(layer.histograms.counts[0].sum())
    assert len(histogram["rows"]) == 12 <= SHOWN_CLASSES


def test_interesting_units_come_first_and_all_come_once(record):
    layer = record.layers[1]
    order = interesting(layer)
    assert sorted(order) == list(range(layer.units_count))
    near = nearness(layer)
    closest = int(np.nanargmin(near))
    for unit in (layer.histograms.units[0], closest, 6, 2, 3):
        assert order.index(unit) < 16


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=30),
    st.integers(0, 20_000),
    st.integers(0, 50),
)
def test_shares_are_fair(wanted, budget, least):
    given_out = shares(wanted, budget, least)
    assert all(min(w, least) <= g <= w for g, w in zip(given_out, wanted, strict=True))
    if least == 0:
        assert sum(given_out) <= budget
        # No one is cut below what another one got.
        cut = [g for g, w in zip(given_out, wanted, strict=True) if g < w]
        assert not cut or max(given_out) <= min(cut) + len(wanted)
        assert not cut or sum(given_out) > budget - len(wanted)


@given(st.lists(st.floats(width=64), min_size=1, max_size=20))
def test_short_numbers_are_close_and_short(values):
    for value, found in zip(values, short(np.array(values)), strict=True):
        if not math.isfinite(value):
            assert found == value or math.isnan(found) == math.isnan(value)
        elif 1e-18 < abs(value) < 1e18:
            assert found == float(f"{value:.3e}") or found == pytest.approx(value, rel=5.1e-4)
            assert len(re.sub(r"e.*|[-.]", "", repr(found)).strip("0")) <= 4
        elif abs(value) < 1e300:
            assert found == pytest.approx(value, rel=6e-4)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_pictures_are_whole(shape):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(payload.png(pixels)))), pixels)


def test_samples_become_pixels_between_black_and_white():
    sample = np.array([[-1.0, 0.0], [1.0, np.nan]])
    assert payload.as_pixels(sample, (2, 2), -1.0, 1.0).tolist() == [[0, 128], [255, 0]]
    colour = np.arange(12.0).reshape(3, 2, 2)
    assert payload.as_pixels(colour, (3, 2, 2), 0.0, 11.0).shape == (2, 2, 3)
    assert payload.as_pixels(np.zeros(200 * 100), (200, 100), 0.0, 1.0).shape == (50, 25)
    assert payload.as_pixels(np.ones(8), (2, 2, 2), 1.0, 1.0).tolist() == [[0, 0], [0, 0]]


def test_pictures_end_where_the_budget_does(record):
    found = payload.samples_of(record, [5, 5, 3, *range(40), 9999, -1], budget=5000)
    assert found["form"] == "picture"
    assert list(found["shown"])[:3] == ["5", "3", "0"]
    assert found["left_out"] + len(found["shown"]) == 40
    assert 0 < found["left_out"] < 40


def test_samples_that_are_no_images(record):
    whole = replaced(
        record,
        data=replaced(record.data, image=None),
        examples=torch.arange(24).reshape(2, 12),
        example_samples=torch.tensor([4, 8]),
        example_labels=torch.tensor([1, 0]),
    )
    found = payload.samples_of(whole, [8, 4])
    assert found["form"] == "words"
    assert found["shown"]["8"] == "12 13 14 15 16 17 18 19 20 21 …"
    assert found["labels"] == {"8": 0, "4": 1}
    line = payload.samples_of(replaced(whole, examples=torch.tensor([[0.0, 2.0], [1.0, 2.0]])), [4])
    assert (line["form"], line["shown"]["4"]) == ("line", [0, 99])
    assert payload.samples_of(replaced(whole, examples=None), [4])["form"] == "number"


def test_positions_of_a_convolution_are_placed_only_where_they_cover_the_image(record):
    conv = record.layers[0]
    assert payload.grid_of(record, conv) == (8, 8)
    assert payload.grid_of(record, replaced(conv, positions=63)) is None
    assert payload.grid_of(record, replaced(conv, calls=2)) is None
    assert payload.grid_of(record, record.layers[1]) is None
    wide = replaced(record, data=replaced(record.data, image=(3, 20, 40)))
    assert payload.grid_of(wide, replaced(conv, positions=50)) == (5, 10)


def test_verdicts_show_their_interval_and_tests_where_they_have_them(record):
    plain = record.layers[1].verdict
    assert tables.interval_of(plain) == ""
    assert [name for name, _ in payload.evidence(plain)] == ["Score"]
    tested = Verdict(
        word="even",
        share=None,
        chance=None,
        reason="",
        score=0.31,
        interval=(0.1, 0.48),
        p_chance=0.0004,
        p_baseline=0.2,
        baseline_score=-0.05,
    )
    assert tables.interval_of(tested) == "+0.10 to +0.48"
    assert payload.evidence(tested) == [
        ("Score", "+0.31 (+0.10 to +0.48)"),
        ("Different from chance", "p < 0.001"),
        ("Different from untrained", "p = 0.20"),
        ("Score when untrained", "−0.05"),
    ]
    unknown = replaced(
        tested,
        score=None,
        interval=(math.nan, 0.1),
        p_chance=math.nan,
        p_baseline=None,
        baseline_score=None,
    )
    assert tables.interval_of(unknown) == ""
    assert payload.evidence(unknown) == []


def test_the_words_around(record):
    assert audit_page.lead(record)[1] == ("Accuracy", "92.50 %")
    clusters = replaced(record, data=replaced(record.data, labels="clusters"))
    assert ("Clusters", "10, found by k-means: there were no labels") in audit_page.lead(clusters)
    changed = replaced(record, settings=replaced(record.settings, through=0.25, seed=3))
    assert "audit(model, data, through=0.25, seed=3)" in audit_page.again(changed)["code"]
    assert [tables.percent(p) for p in (0.9999, 0.004, 0.3)] == ["99.9 %", "0.4 %", "30 %"]
    assert tables.signed(-0.001) == "0.00"
    assert tables.signed(-0.5) == "−0.50"
