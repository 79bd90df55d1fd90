"""Objects that a user holds show themselves: a repr of one line, and HTML in notebooks."""

from __future__ import annotations

import dataclasses
import inspect
import webbrowser
from html.parser import HTMLParser
from importlib import import_module

import msgspec
import pytest
import torch
from torch import nn

import mahalens
from mahalens import _show, detection, train
from mahalens.data.dataset import Samples
from mahalens.data.formats import Series
from mahalens.detection.record import DetectionRecord, MethodResult
from mahalens.report.records import Curve, Outcome, Row, Summary
from mahalens.report.tables import Cell, Column, Table

EVIL = "<script>alert('&')</script>\x1b[2J\nsecond line " + "very " * 60 + "long"
ROOMS = ("nn", "init", "geometry", "train", "auditing", "detection", "data", "stats", "report")


class EvilNet(nn.Sequential):
    """A network with a name that a page must not obey."""


EvilNet.__name__ = EVIL


def samples():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def held_objects():
    """One object of every kind that a user holds, with names from outside where it takes them."""
    x, y = samples()
    torch.manual_seed(0)
    model = EvilNet(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    record = mahalens.audit(model, (x, y), classes=[EVIL, "b"], source=EVIL, name=EVIL)
    layer = msgspec.structs.replace(record.layers[0], name=EVIL)
    yield from (record, layer, record.settings, record.data, record.diff(record))
    yield from (layer.units, layer.hyperplanes, layer.pairs, layer.whitening, layer.verdict)
    yield from (layer.prototypes, layer.histograms, *layer.suggestions[:1])
    after = mahalens.audit(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), (x, y))
    difference = record.diff(after)
    yield from (difference, difference.layers[0])
    yield mahalens.prune(model, record, x).pruned
    gaussian = mahalens.Gaussian.from_data(x)
    yield from (gaussian, mahalens.Gaussian(x[:, :2], torch.eye(2)))
    weight, bias = model[0].weight.detach(), model[0].bias.detach()
    yield mahalens.read_gram(weight, bias, gaussian)
    yield mahalens.auditing.match_rows(weight, gaussian)
    for kind in ("spherical", "diagonal", "full", "low-rank", "shared-basis"):
        options = {"rank": 2} if kind in ("low-rank", "shared-basis") else {}
        yield mahalens.ellipsoids.from_data(x, y, kind=kind, ridge=0.1, **options)
    spheres = mahalens.ellipsoids.from_data(x, torch.arange(60) % 6, kind="spherical")
    yield mahalens.reconstruct(spheres, spheres.distances(x[:2]))
    yield mahalens.LabelledData(EVIL, x, y, x, y, None, 1.0, EVIL)
    yield Samples(x, y, (EVIL, "b"), None, EVIL)
    yield Series(EVIL, x[:, None], y, (EVIL, "b"))
    watch = mahalens.Watch(x)
    watch(model, 0)
    yield watch
    check = mahalens.check_init(model, x)
    yield from (check, check.layers[0], mahalens.initialise(model, x))
    chain = mahalens.Chain.parse("Linear(4), ReLU, " * 40 + "Linear(2)", inputs=3)
    yield from (chain, chain.layers[0])
    trials = mahalens.TrialStack.from_seeds(chain, range(2))
    yield from (trials, trials.model)
    for solver in ("sgd", "adam", "newton"):
        small = mahalens.TrialStack.from_seeds(
            mahalens.Chain.parse("Linear(2)", inputs=3), range(2)
        )
        yield mahalens.fit(small, x, x[:, :2], epochs=2, solver=solver, engine="torch")
    yield from (train.Batches(8), train.History(), train.Template(model), train.Status.RUNNING)
    detector = mahalens.detect(model, (x, y), rate=0.2)
    yield from (detector, detector.choice, detector.choice.trials[0])
    known, unknown = torch.randn(30), torch.randn(30) + 1
    separation = detection.separation(known, unknown, resamples=10)
    yield separation
    yield detection.accuracy_coverage(known, torch.arange(30) % 2 == 0, resamples=10)
    result = MethodResult(EVIL, separation, note=EVIL)
    yield result
    facts = dict.fromkeys(("model", "known", "unknown", "layer", "method", "reason"), EVIL)
    yield DetectionRecord(
        **facts, features=3, classes=(EVIL,), rate=0.05, options={}, thresholds=(1.0,), fitted=9,
        held_out=9, results=(result,), notes=(EVIL,),
    )  # fmt: skip
    row = Row(EVIL, EVIL, 0.5, 3, group={"data": EVIL})
    yield from (row, Outcome(EVIL, 3, {EVIL: 3}), Summary(EVIL, "scaled", [row], []))
    yield Curve(x[0].numpy(), x[0].numpy())
    yield Table(EVIL, (Column(EVIL, True),), ((Cell(EVIL, note=EVIL, below=EVIL),),), (EVIL,))


@pytest.fixture(scope="module")
def objects():
    return list(held_objects())


class WellFormed(HTMLParser):
    """Raises where a tag is closed that is not open, and notes every tag."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.open += [tag]

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html):
    parser = WellFormed()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def test_every_repr_is_one_short_line(objects):
    for shown in objects:
        if not isinstance(shown, nn.Module):  # those show themselves as torch shows modules
            text = repr(shown)
            assert len(text) <= _show.LONGEST, (type(shown), text)
            assert text.isprintable(), (type(shown), text)


def test_html_is_well_formed_and_obeys_no_name(objects):
    shown = [each for each in objects if hasattr(each, "_repr_html_")]
    assert len(shown) > 40
    for each in shown:
        html = each._repr_html_()
        page = parsed(html)
        assert "script" not in page.seen, type(each)
        assert "&amp;lt;" not in html, type(each)  # escaped once
        if not isinstance(each, Table):  # takes texts that were made printable
            assert "\x1b" not in html, type(each)
        assert "".join(page.text).strip(), type(each)


def test_every_public_class_of_values_is_tried(objects):
    """Exempt are modules, which torch shows, and tuples of tensors, which print their tensors."""
    tried = {base for each in objects for base in type(each).__mro__}
    tensors = {"Explanation", "Prediction", "Spectrum"}
    plain = {"ChanceCosine", "SeparationDifference"}  # three numbers each
    for room in ROOMS:
        names = vars(import_module(f"mahalens.{room}"))["__all__"]
        for name in names:
            value = getattr(import_module(f"mahalens.{room}"), name)
            is_record = inspect.isclass(value) and (
                dataclasses.is_dataclass(value)
                or issubclass(value, msgspec.Struct)
                or hasattr(value, "_fields")
                or "__repr__" in vars(value)
            )
            if is_record and not issubclass(value, nn.Module) and room != "stats":
                assert value in tried or name in tensors | plain, name


def test_a_table_of_many_rows_is_cut_and_says_so():
    html = _show.table_html("Rows", ("number",), [(n,) for n in range(1000)])
    assert html.count("<tr>") == 61
    assert "<p>and 940 more</p>" in html


def test_tensors_are_not_computed_with():
    """A repr in a debugger must not read tensors of a device or of a gradient."""
    reading = mahalens.audit(nn.Linear(3, 8), samples()[0]).layers[0].units
    meta = msgspec.structs.replace(reading, mean=torch.empty(8, device="meta"))
    assert "mean=float32[8]" in repr(meta)
    assert "float32[8]" in meta._repr_html_()


def test_chains_can_be_pasted_back():
    chain = mahalens.Chain.parse("Linear(4, bias=False), ReLU, Norm", inputs=2)
    assert eval(repr(chain), {"Chain": mahalens.Chain}) == chain


class TestPageOfARecord:
    @pytest.fixture
    def record(self):
        x, y = samples()
        return mahalens.audit(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), (x, y))

    def test_report_writes_the_page(self, record, tmp_path):
        page = record.report(tmp_path / "new")
        assert page == tmp_path / "new" / "report.html"
        assert record.verdict in page.read_text()
        assert list(page.parent.iterdir()) == [page]

    def test_report_draws_figures_on_demand(self, record, tmp_path):
        record.report(tmp_path, figures=True)
        assert (tmp_path / "figures" / "overview.png").is_file()

    def test_show_opens_the_page(self, record, monkeypatch, tmp_path):
        opened = []
        monkeypatch.setattr(webbrowser, "open", opened.append)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        page = record.show()
        assert opened == [page.as_uri()]
        assert page.is_relative_to(tmp_path)
        assert page.is_file()
