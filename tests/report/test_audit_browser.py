"""The page of an audit in a real browser: it opens, sorts, lets one choose, and runs no name."""

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
from browser import running_browser

from mahalens.report.audit.folder import render_audit_page
from mahalens.report.audit.tables import VERDICTS

pytestmark = pytest.mark.slow


def labelled_record():
    record = example_record()
    return replaced(record, example_labels=torch.arange(len(record.examples)) % 10)


def crowded_record():
    """Every class mean stands on the hyperplanes of the second layer."""
    record = labelled_record()
    layer = record.layers[1]
    planes = replaced(
        layer.hyperplanes,
        class_spreads=torch.zeros_like(layer.hyperplanes.class_spreads),
        through=torch.zeros_like(layer.hyperplanes.through),
        common=torch.ones_like(layer.hyperplanes.through),
    )
    layer = replaced(layer, hyperplanes=planes)
    return replaced(record, layers=(record.layers[0], layer, *record.layers[2:]))


def deep_record(layers=100):
    """Many layers of all kinds; the only two that are distance-like come last but one."""
    record = large_record(layers=layers, units=12)
    words = ("mixed", "even", "not judged", "too few units", "intensity-like", "broken")
    made = []
    for place, layer in enumerate(record.layers):
        word = "distance-like" if place in (layers - 3, layers - 2) else words[place % 6]
        made.append(replaced(layer, verdict=replaced(layer.verdict, word=word)))
    return replaced(record, layers=tuple(made))


RECORDS = {
    "usual": labelled_record,
    "crowded": crowded_record,
    "unlabelled": lambda: example_record(classes=0),
    "vectors": lambda: example_record(image=False),
    "hostile": hostile_record,
    "bare": bare_record,
    "empty": empty_record,
    "large": lambda: large_record(layers=16, units=150),
    "deep": deep_record,
    "many classes": lambda: large_record(layers=1, units=60, classes=1000, samples=2000),
}


@pytest.fixture(scope="module")
def browser():
    # Not for the whole session: while it runs, no other event loop can run beside it.
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of the page of a record, written once."""
    written = {}

    def write(name):
        if name not in written:
            path = tmp_path_factory.mktemp("page") / "report.html"
            path.write_text(render_audit_page(RECORDS[name]()), encoding="utf-8")
            written[name] = path.as_uri()
        return written[name]

    return write


@pytest.fixture
def visit(browser, address):
    """Opens the page of a record; at the end nothing may have gone wrong in it."""
    faults, contexts = [], []

    def open_page(name, place="", width=1200, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else faults.append(r.url),
        )
        page.goto(address(name) + place)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def numbers_in(page, column):
    """What a column of the layer table is sorted by, in the order shown; None where missing."""
    cells = page.locator(f"#layer-table tbody tr > :nth-child({column})")
    found = cells.evaluate_all("cells => cells.map(cell => cell.dataset.sort)")
    return [float(value) if value else None for value in found]


def overflow(page):
    root = "document.documentElement"
    return page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")


@pytest.mark.parametrize("name", RECORDS)
def test_opens_without_a_fault_and_fits_a_narrow_window(visit, name):
    record = RECORDS[name]()
    page = visit(name, width=400)
    assert page.inner_text("h1") == record.verdict
    assert overflow(page) <= 0
    assert page.locator("#layer-table tbody tr").count() == len(record.layers)
    for place in range(min(len(record.layers), 4)):
        page.select_option("#layer-select", str(place))
        shown = record.layers[place]
        assert page.inner_text("#layer-title").startswith(f"Layer {shown.name or '(no name)'}")
        assert overflow(page) <= 0
        page.locator("#unit-table tbody button").first.click()
        assert page.is_visible("#node-title")
        assert page.locator("#node").evaluate("d => d.scrollWidth - d.clientWidth") <= 0
        page.keyboard.press("Escape")
        assert not page.is_visible("#node-title")


def test_layers_sort_by_number_with_what_is_missing_last(visit):
    page = visit("usual")
    units = page.locator("#layer-table thead th").nth(5)
    units.locator("button").click()
    assert units.get_attribute("aria-sort") == "ascending"
    assert numbers_in(page, 6) == [4, 6, 10, 32]
    units.locator("button").click()
    assert units.get_attribute("aria-sort") == "descending"
    assert numbers_in(page, 6) == [32, 10, 6, 4]
    white = page.locator("#layer-table thead th").nth(12)
    white.locator("button").focus()
    for rising in (True, False):
        page.keyboard.press("Enter")
        values = numbers_in(page, 13)
        known = [v for v in values if v is not None]
        assert len(known) == 2
        assert values == [*sorted(known, reverse=not rising), None, None]
    assert units.get_attribute("aria-sort") == "none"


def test_layers_of_equal_value_keep_their_order(visit):
    page = visit("large")
    before = numbers_in(page, 1)
    page.locator("#layer-table thead button").nth(5).click()  # all have 150 units
    assert numbers_in(page, 1) == before
    assert numbers_in(page, 6) == [150.0] * 16


def shown_layers(page):
    rows = page.locator("#layer-table tbody tr:visible")
    return [int(place) for place in rows.evaluate_all("all => all.map(r => r.dataset.layer)")]


@pytest.mark.parametrize("width", [390, 1280])
def test_all_layers_of_a_usual_network_are_in_view(visit, width):
    page = visit("large", width=width)
    assert shown_layers(page) == list(range(16))
    assert "Showing all 16 layers" in page.inner_text("#layer-count")
    area = page.locator("#layers .scroll")
    assert area.evaluate("a => a.scrollHeight - a.clientHeight") <= 0


def test_of_very_many_layers_a_button_shows_the_rest(visit):
    page = visit("deep")
    assert shown_layers(page) == list(range(40))
    assert "Showing the first 40 of 100 layers" in page.inner_text("#layer-count")
    page.locator("#layer-table thead button", has_text="Score").click()
    assert len(shown_layers(page)) == 40
    page.locator("#layer-count button").click()
    assert sorted(shown_layers(page)) == list(range(100))
    assert "Showing all 100 layers" in page.inner_text("#layer-count")


def test_layers_are_filtered_by_verdict(visit):
    page = visit("deep")
    page.locator("#layer-filter button", has_text="distance-like 2").click()
    assert shown_layers(page) == [97, 98]
    assert "Showing 2 distance-like layers" in page.inner_text("#layer-count")
    pressed = page.locator("#layer-filter [aria-pressed=true]")
    assert "distance-like" in pressed.inner_text()
    assert "prototype" in pressed.get_attribute("title")
    page.locator("#layer-filter button", has_text="all 100").click()
    assert len(shown_layers(page)) == 40
    legend = page.inner_text(".meanings")
    assert all(word in legend and look.meaning in legend for word, look in VERDICTS.items())


@pytest.mark.parametrize("name", ["deep", "usual"])
def test_verdicts_are_readable_on_a_phone_without_pushing(visit, name):
    page = visit(name, width=390)
    assert overflow(page) <= 0
    assert page.locator("#layers .scroll").evaluate("a => a.scrollLeft") == 0
    pills = page.locator("#layer-table tbody tr:visible .verdict").all()
    names = page.locator("#layer-table tbody tr:visible .choose").all()
    for pill, layer in zip(pills, names, strict=True):
        box, beside = pill.bounding_box(), layer.bounding_box()
        assert box["x"] >= beside["x"] + beside["width"]
        assert box["x"] + box["width"] <= 390 - 20
    assert page.evaluate("document.body.scrollWidth") == 390


def test_a_layer_is_chosen_by_click_by_key_by_list_and_by_address(visit):
    page = visit("usual")
    title = page.locator("#layer-title")
    assert title.inner_text().startswith("Layer conv")
    page.locator("#layer-table tbody tr").nth(1).locator("td").nth(1).click()
    assert title.inner_text().startswith("Layer fc1")
    assert page.input_value("#layer-select") == "1"
    assert page.locator("#layer-table tr.chosen").get_attribute("data-layer") == "1"
    assert page.evaluate("location.hash") == "#layer-2"
    page.locator("#layer-table .choose").nth(2).focus()
    page.keyboard.press("Enter")
    assert title.inner_text().startswith("Layer fc2")
    page.select_option("#layer-select", label="broken")
    assert title.inner_text().startswith("Layer broken")
    assert "all 4 units are dead" in page.inner_text("#layer-verdict")
    assert visit("usual", "#layer-2").inner_text("#layer-title").startswith("Layer fc1")


def test_marks_stand_where_the_class_means_are(visit):
    layer = labelled_record().layers[1]
    page = visit("usual", "#layer-2")
    plane = page.locator(".strip line.plane").first.bounding_box()
    middle = plane["x"] + plane["width"] / 2
    unit = 13
    strip = page.locator(f'.strip[data-unit="{unit}"]')
    boxes = [mark.bounding_box() for mark in strip.locator(".mark").all()]
    seen = sorted(box["x"] + box["width"] / 2 - middle for box in boxes)
    expected = sorted((layer.units.class_mean[:, unit] / layer.units.std[unit]).tolist())
    scale = seen[-1] / expected[-1]
    assert scale > 50
    assert seen == pytest.approx([scale * value for value in expected], abs=2.0)
    assert page.locator(".strip .hit").count() == int(layer.hyperplanes.through.sum())
    strip.locator(".mark").first.hover()
    assert "spreads of the unit" in page.inner_text("#tip")


def test_one_class_can_be_shown_alone(visit):
    page = visit("usual", "#layer-2")
    page.locator("#class-legend button").nth(3).click()
    assert page.locator("#class-legend [aria-pressed=true]").inner_text() == "3"
    marks = page.locator(".strip .mark")
    assert page.locator(".strip .mark.faded").count() == marks.count() * 9 // 10
    page.locator("#class-legend button").nth(3).click()
    assert page.locator(".strip .mark.faded").count() == 0


def test_a_node_near_most_classes_is_not_said_to_pass_through_none(visit):
    page = visit("crowded", "#layer-2")
    page.locator("#unit-table button", has_text="3").first.click()
    said = page.inner_text("#node")
    assert "Its hyperplane is near most classes at once and singles none out" in said
    assert "passes through no class" not in said
    assert page.locator("#unit-table td", has_text="near most").count() > 1


def test_a_node_shows_its_histogram_and_prototypes(visit):
    record = labelled_record()
    layer = record.layers[1]
    page = visit("usual", "#layer-2")
    page.locator("#unit-table button", has_text="3").first.click()
    assert page.inner_text("#node-title").startswith("Unit 3")
    assert page.locator("#node-histogram svg.histogram path[data-tip]").count() == 10
    for reading, samples in (
        ("near", layer.prototypes.near_sample[3]),
        ("active", layer.prototypes.active_sample[3]),
    ):
        wanted = [s for s in samples.tolist() if s >= 0]
        pictures = page.locator(f".thumbs.{reading} img")
        assert pictures.evaluate_all("all => all.map(i => i.alt)") == [
            f"sample {s}" for s in wanted
        ]
        assert all(pictures.evaluate_all("all => all.map(i => i.complete && i.naturalWidth == 28)"))
        labels = page.locator(f".thumbs.{reading} strong").all_inner_texts()
        assert labels == [str(s % 10) for s in wanted]
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#node-title").startswith("Unit 4")
    page.keyboard.press("Escape")
    assert not page.is_visible("#node-title")


def test_a_unit_without_histogram_shows_means_and_spreads(visit):
    page = visit("usual", "#layer-2")
    page.locator('#unit-table tr[data-unit="20"] button').click()
    assert page.locator("#node-histogram svg.spreads rect").count() == 10
    assert "No histogram was kept" in page.inner_text("#node")


def test_vectors_are_drawn_as_lines(visit):
    page = visit("vectors", "#layer-1")
    page.locator('#unit-table tr[data-unit="0"] button').click()
    assert page.locator(".thumbs.near polyline").count() == 8


def test_strips_are_walked_and_opened_by_keys(visit):
    page = visit("usual", "#layer-2")
    strips = page.locator(".strip")
    assert strips.evaluate_all("all => all.map(s => s.tabIndex)").count(0) == 1
    strips.first.focus()
    page.keyboard.press("ArrowDown")
    second = strips.nth(1).get_attribute("data-unit")
    assert page.evaluate("document.activeElement.dataset.unit") == second
    page.keyboard.press("Enter")
    assert page.inner_text("#node-title").startswith(f"Unit {second} ")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.unit") == second


def test_units_are_filtered_and_sorted(visit):
    layer = labelled_record().layers[1]
    page = visit("usual", "#layer-2")
    rows = page.locator("#unit-table tbody tr")

    def units():
        return [int(u) for u in rows.evaluate_all("all => all.map(r => r.dataset.unit)")]

    for name, wanted in (("dead", [6]), ("mirrored", [2, 5]), ("duplicate", [3, 7])):
        page.select_option("#unit-filter", name)
        assert units() == wanted
    page.select_option("#unit-filter", "class-7")
    through = [
        unit
        for unit in range(layer.units_count)
        if layer.hyperplanes.through[unit] and layer.hyperplanes.nearest[unit] == 7
    ]
    assert units() == through
    page.locator("#unit-table thead button", has_text="Mean").click()
    means = layer.units.mean
    assert units() == sorted(through, key=lambda unit: float(means[unit]))
    page.locator("#unit-table thead button", has_text="Mean").click()
    assert units() == sorted(through, key=lambda unit: -float(means[unit]))


def test_large_layers_come_in_pages(visit):
    page = visit("large", "#layer-2")
    assert page.locator(".strip").count() == 40
    first = page.locator(".strip").first.get_attribute("data-unit")
    page.locator("#picture-pages button", has_text="Next").click()
    assert page.locator(".strip").first.get_attribute("data-unit") != first
    page.select_option("#picture-order", "unit")
    shown = page.locator(".strip").evaluate_all("all => all.map(s => Number(s.dataset.unit))")
    assert shown == list(range(40))


def test_curves_of_perturbation_and_spectra_are_drawn(visit):
    page = visit("usual", "#layer-2")
    assert page.locator("#spectrum polyline").count() == 2
    assert page.locator("#perturbation svg").count() == 3
    assert page.locator("#perturbation circle").count() == 15
    page.select_option("#layer-select", "2")
    assert "not measured" in page.inner_text("#perturbation-panel")


def test_names_are_shown_and_never_run(visit):
    page = visit("hostile")
    for place in range(4):
        page.select_option("#layer-select", str(place))
        page.locator(".strip").first.click() if place < 3 else None
        page.keyboard.press("Escape")
    assert page.evaluate("window.broken") is None
    assert page.inner_text("h1") == HOSTILE
    assert page.locator("img[src=x]").count() == 0
    page.select_option("#layer-select", "2")
    assert "{{ 7 * 7 }}" in page.inner_text("#layer-title")


def test_without_scripts_the_answer_still_stands(visit):
    page = visit("usual", java_script_enabled=False)
    assert "fc1" in page.inner_text("#layer-table")
    assert "switched off" in page.inner_text("noscript")


def test_the_picture_is_drawn_anew_for_another_width(visit):
    page = visit("usual", "#layer-2", width=1200)
    width = "Number(document.querySelector('#picture svg').getAttribute('width'))"
    assert page.evaluate(width) > 1000
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function(f"{width} < 500")
    assert overflow(page) <= 0
