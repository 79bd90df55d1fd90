"""Laws that every detector keeps: its formula, batches of any size, files, thresholds."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from detectors import CASES, Case, samples
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mahalens.detection import METHODS, Detector
from mahalens.detection.known import Gatherer, Moments, Reservoir, Rows
from mahalens.errors import InputError

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def test_every_method_has_a_case() -> None:
    assert {case.method for case in CASES.values()} == set(METHODS) - {"layered"}


@every_case
def test_scores_are_those_of_the_formula(case: Case) -> None:
    z, y, new = samples()
    detector = case.make().fit_features(z, y, hold_out=0)
    expected = case.formula(z.numpy(), y.numpy(), new.numpy())
    scores = detector.score_features(new)
    np.testing.assert_allclose(scores, expected, rtol=case.digits, atol=case.digits)


@every_case
def test_order_and_batches_do_not_matter(case: Case) -> None:
    z, y, new = samples()
    model = nn.Identity()
    data = TensorDataset(z, y.clamp(min=0))
    whole = case.make().fit_features(z, y.clamp(min=0))
    batched = case.make().fit(model, DataLoader(data, batch_size=7))
    assert torch.equal(whole.score_features(new), batched.score(new))
    assert torch.equal(whole.reject_features(new), batched.reject(new))
    torch.testing.assert_close(batched.score(DataLoader(new, 3)), batched.score(new))
    if case.method == "combined":  # which samples standardise the scores is drawn by number
        return
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(1))
    one, two = (case.make().fit_features(z[o], y[o], hold_out=0) for o in (order, order.flip(0)))
    torch.testing.assert_close(one.score_features(new), two.score_features(new))


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats_are_scored_in_float32(case: Case, dtype: torch.dtype) -> None:
    z, y, new = samples(dtype=dtype)
    narrow = case.make().fit_features(z, y).score_features(new)
    exact = case.make().fit_features(z.double(), y).score_features(new.double())
    assert narrow.dtype == torch.float32
    assert exact.dtype == torch.float64
    torch.testing.assert_close(narrow.double(), exact, rtol=2e-4, atol=2e-3)


@every_case
def test_files_and_state_dicts_restore_everything(case: Case, tmp_path) -> None:
    z, y, new = samples()
    detector = case.make().fit_features(z, y).set_reject(0.1)
    detector.save(tmp_path / "detector.safetensors")
    again = Detector.load(tmp_path / "detector.safetensors")
    third = case.make()
    third.load_state_dict(detector.state_dict())
    one = detector.explain_features(new)
    for other in (again, third):
        for a, b in zip(one, other.explain_features(new), strict=True):
            assert a == b if isinstance(a, tuple) else torch.equal(a, b)
        assert repr(other) == repr(detector)


@every_case
def test_explanations_agree_with_scores(case: Case) -> None:
    z, y, new = samples()
    detector = case.make().fit_features(z, y)
    seen = detector.explain_features(new)
    assert torch.equal(seen.score, detector.score_features(new))
    assert torch.equal(seen.reject, detector.reject_features(new))
    assert torch.equal(seen.p_value, detector.p_value_features(new))
    assert set(seen.label.tolist()) <= set(y.tolist())
    step = 1e-6
    slope = (detector.score_features(new + step * seen.direction) - seen.score) / step
    for _ in range(3):
        other = nn.functional.normalize(torch.randn_like(new), dim=1)
        there = (detector.score_features(new + step * other) - seen.score) / step
        assert bool((there <= slope + 1e-3 * slope.abs() + 1e-3).all())


@every_case
def test_scoring_exports_with_a_dynamic_batch(case: Case) -> None:
    z, y, new = samples(dtype=torch.float32)
    scorer = case.make().fit_features(z, y).scorer()
    rows = torch.export.Dim("rows", min=1, max=10_000)
    program = torch.export.export(scorer, (new[:4],), dynamic_shapes={"z": {0: rows}}).module()
    for some in (new[:1], new):
        for one, two in zip(program(some), scorer(some), strict=True):
            torch.testing.assert_close(one, two)


@every_case
def test_few_samples_constant_columns_and_lonely_classes_give_finite_scores(case: Case) -> None:
    z, y, new = samples(count=12, dim=20)
    z[:, 3] = 1.0
    y[0] = 50
    scores = case.make().fit_features(z, y, hold_out=0).score_features(new)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("name", ["mahalanobis", "marginal", "relative", "mahavar"])
def test_affine_maps_change_no_distance(name: str) -> None:
    z, y, new = samples()
    mix = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def score(change):
        return CASES[name].make().fit_features(change(z), y).score_features(change(new))

    torch.testing.assert_close(score(lambda z: z), score(lambda z: z @ mix + 1e3))


def test_oas_and_empirical_covariance_are_those_of_scikit_learn() -> None:
    from sklearn.covariance import OAS, EmpiricalCovariance

    z, _, new = samples()
    for shrinkage, kind in ((0.0, EmpiricalCovariance()), ("auto", OAS())):
        detector = METHODS["marginal"](normalise="none", shrinkage=shrinkage)
        ours = detector.fit_features(z, hold_out=0).score_features(new)
        np.testing.assert_allclose(ours.square(), kind.fit(z.numpy()).mahalanobis(new.numpy()))


def test_length_is_ignored_where_it_varies() -> None:
    z, y, _ = samples(2000, dim=20)
    lengths = torch.rand(len(z), 1, generator=torch.Generator().manual_seed(0)) * 10
    rays = nn.functional.normalize(z + 20, dim=1) * lengths
    assert float(METHODS["mahalanobis"]().fit_features(rays, y).beta) == 1


def test_logits_of_the_caller_are_read() -> None:
    z, _, new = samples()
    for name in ("energy", "max-softmax", "max-logit", "gen"):
        detector = METHODS[name]().fit_features(z, logits=z)
        seen = detector.explain_features(new, logits=3 * new)
        assert torch.equal(seen.score, detector.from_logits(3 * new))
        assert torch.equal(seen.label, new.argmax(1))
        with pytest.raises(InputError, match="give logits= here too"):
            detector.score_features(new)


def test_a_refit_forgets_the_earlier_fit() -> None:
    z, y, _ = samples(dtype=torch.float32)
    logits = torch.randn(len(z), 4, generator=torch.Generator().manual_seed(0))
    again = METHODS["energy"]().fit_features(z, y)
    again.fit_features(z, logits=logits)
    once = METHODS["energy"]().fit_features(z, logits=logits)
    assert set(again.state_dict()) == set(once.state_dict())
    zeros = torch.zeros(3, 4)
    assert again.score_features(z[:3], logits=zeros).tolist() == pytest.approx([-np.log(4)] * 3)


def test_a_refit_to_features_forgets_the_model() -> None:
    x, y = images()
    detector = METHODS["mahalanobis"]().fit(Network(), (x, y), layer="features")
    z, labels, _ = samples()
    detector.fit_features(z, labels)
    assert (detector.layer, detector._named) == (("features",), False)
    with pytest.raises(InputError, match="has no model"):
        detector.score(x)


def test_a_refit_that_fails_leaves_no_half_fitted_detector() -> None:
    z, y, new = samples()
    detector = METHODS["vim"]().fit_features(z, y)
    before = detector.score_features(new)
    with pytest.raises(InputError, match="60 labels"):
        detector.fit_features(z, y[:60])
    assert torch.equal(detector.score_features(new), before)
    with pytest.raises(InputError, match="ViM needs"):
        detector.fit_features(z, logits=-1 - z.abs())
    with pytest.raises(InputError, match="not fitted"):
        detector.score_features(new)


@pytest.mark.parametrize("method", ["energy", "mahalanobis", "neighbours"])
def test_inference_mode_changes_nothing(method: str) -> None:
    z, y, new = samples(dtype=torch.float32)
    expected = METHODS[method]().fit_features(z, y).explain_features(new)
    with torch.inference_mode():
        detector = METHODS[method]().fit_features(z.clone(), y.clone())
        inside = detector.explain_features(new.clone())
    outside = detector.set_reject(0.05).explain_features(new)
    for seen in (inside, outside):
        for a, b in zip(seen, expected, strict=True):
            assert a == b if isinstance(a, tuple) else torch.equal(a, b)
    assert not any(value.is_inference() for value in detector.state_dict().values())


def test_no_fit_moves_the_random_state() -> None:
    z, y, _ = samples(100)
    for name in ("energy", "vim", "mahalanobis", "neighbours"):
        before = torch.random.get_rng_state()
        METHODS[name]().fit_features(z, y)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_logits_of_a_sequence_have_a_class_each() -> None:
    """An output [n, T, L]: the linear layer is known, the logits of a sample are not."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12))
    x = torch.randn(200, 5, 8, generator=torch.Generator().manual_seed(0))
    for data in ((x, torch.arange(200) % 3), x):
        detector = METHODS["energy"]().fit(model, data)
        assert detector.classes.tolist() == list(range(12))
        features = model[:2](x).mean(1)
        labels = model[2](features).argmax(1)
        assert torch.equal(detector.explain(x).label, labels)


def test_a_threshold_is_set_from_as_few_samples_as_can_keep_it() -> None:
    z, _, _ = samples(200)
    sizes = {}
    for count in range(60, 130):
        detector = METHODS["marginal"]().fit_features(z[:count])
        sizes[len(detector.held_scores)] = detector
    assert sizes[19].reject_features(z).shape == (200,)
    for call in (lambda: sizes[18].reject_features(z), lambda: sizes[18].set_reject(0.05)):
        with pytest.raises(InputError, match=r"18 samples|only 18"):
            call()


def test_scoring_reads_no_labels() -> None:
    x, y = images()
    detector = METHODS["mahalanobis"]().fit(Network(), (x, y))
    expected = detector.score(x)
    for labels in (y, y - 1, (y - 1).numpy(), (y - 1).tolist(), torch.full_like(y, -1)):
        assert torch.equal(detector.score((x, labels)), expected)
    with pytest.raises(InputError, match="one label per sample"):
        detector.score((x, y[:-1] - 1))


# --- Gathering --------------------------------------------------------------------------------


def gather(z, y, size, **options):
    from mahalens.detection.known import Wanted

    gatherer = Gatherer(Wanted((0.0,), sample=True), hold_out=0.2, seed=0, labelled=True)
    for start in range(0, len(z), size):
        gatherer.add(z[start : start + size], y[start : start + size])
    return gatherer.finish()


def test_held_out_samples_are_not_fitted_to(monkeypatch) -> None:
    monkeypatch.setattr("mahalens.detection.known.MOST_HELD_OUT", 30)
    monkeypatch.setattr("mahalens.detection.known.MOST_NUMBERS", 500)
    monkeypatch.setattr("mahalens.detection.known.BLOCK", 100)
    z, y, _ = samples(2000)
    known = gather(z, y, 50)
    fitted = known.moments[0.0]
    assert len(known.held) == 30
    assert fitted.count == 1970 == int(known.counts.sum())
    total = (fitted.counts @ fitted.means) + known.held.z.sum(0)
    torch.testing.assert_close(total, z.sum(0))
    rows = {tuple(row) for row in known.some.z.tolist()}
    assert len(rows) == len(known.some) == 99  # 33 of each of three classes
    assert torch.bincount(known.some.y).tolist() == [33, 33, 33]
    assert not rows & {tuple(row) for row in known.held.z.tolist()}
    again = gather(z, y, 333)
    assert {tuple(row) for row in again.held.z.tolist()} == {
        tuple(row) for row in known.held.z.tolist()
    }


def test_reservoir_takes_all_of_small_classes() -> None:
    reservoir = Reservoir(20, balanced=True)
    y = torch.tensor([0] * 3 + [1] * 500 + [2] * 500)
    draw = torch.rand(len(y), dtype=torch.float64)
    for rows in torch.randperm(len(y)).split(17):
        reservoir.add(Rows(y[rows, None].double(), y[rows], None, draw[rows]))
    stays, _ = reservoir.finish()
    assert torch.bincount(stays.y).tolist() == [3, 8, 8]
    for c in range(3):
        smallest = draw[y == c].sort().values[: len(stays.draw[stays.y == c])]
        assert torch.equal(stays.draw[stays.y == c].sort().values, smallest)


def test_large_offsets_cost_no_digits() -> None:
    z, y, _ = samples(1000, dtype=torch.float32)
    places = y.unique(return_inverse=True)[1]
    shift = torch.tensor([1e4, -1e4, 0.0, 3e3, 1.0])
    for offset in (0.0, shift):
        moments = Moments(0.0)
        for rows in torch.arange(1000).split(100):
            moments.add((z + offset)[rows], places[rows], 3)
        exact = Moments(0.0)
        exact.add((z + offset).double(), places, 3)
        torch.testing.assert_close(moments.covariance, exact.covariance, rtol=1e-5, atol=1e-5)


# --- Models -----------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def images(count=200):
    x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(count) % 3


def test_features_come_from_before_the_last_linear_layer_or_a_named_one() -> None:
    x, y = images()
    model = Network().train()
    before = copy.deepcopy(model.state_dict())
    detector = METHODS["mahalanobis"]().fit(model, DataLoader(TensorDataset(x, y), 32))
    assert detector.layer == ("input of classifier",)
    assert model.training
    after = model.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), after.values(), strict=True))
    assert not any(m._forward_hooks for m in model.modules())
    z = model.eval().features(x).mean((2, 3)).detach()
    named = METHODS["mahalanobis"]().fit(model, (x, y), layer="features")
    plain = METHODS["mahalanobis"]().fit_features(z, y)
    for other in (detector, named):
        torch.testing.assert_close(other.score(x), plain.score_features(z), rtol=1e-4, atol=1e-4)
    assert set(named.explain(x).layer) == {"features"}


def test_a_loaded_detector_is_attached_to_a_model(tmp_path) -> None:
    x, y = images()
    model = Network()
    for layer in (None, "features.0", "features"):  # the last is also what unnamed ones are called
        detector = METHODS["mahalanobis"]().fit(model, (x, y), layer=layer)
        detector.save(tmp_path / "one.safetensors")
        again = Detector.load(tmp_path / "one.safetensors").attach(model)
        assert torch.equal(again.score(x), detector.score(x))


def test_options_may_be_numbers_of_numpy(tmp_path) -> None:
    z, y, new = samples()
    options = {"normalise": np.float32(0.5), "shrinkage": np.float64(0.1), "rank": np.int64(3)}
    detector = METHODS["mahalanobis"](**options).fit_features(z, y)
    detector.save(tmp_path / "one.safetensors")
    again = Detector.load(tmp_path / "one.safetensors")
    assert again.options == {"normalise": 0.5, "shrinkage": 0.1, "rank": 3}
    assert torch.equal(again.score_features(new), detector.score_features(new))


def test_numbers_of_numpy_are_options_of_every_method(tmp_path) -> None:
    z, y, _ = samples()
    for name, options in {
        "neighbours": {"k": np.int64(10), "normalise": np.float32(0.5)},
        "energy": {"temperature": np.float32(2)},
        "gen": {"gamma": np.float32(0.5), "top": np.int32(2)},
        "vim": {"rank": np.int64(2)},
    }.items():
        detector = METHODS[name](**options).fit_features(z, y, hold_out=np.float32(0.25))
        detector.save(tmp_path / "one.safetensors")
        assert Detector.load(tmp_path / "one.safetensors").options == options
    for wrong in (True, np.bool_(True), 2.0, np.float64(2)):
        with pytest.raises(InputError, match="k is"):
            METHODS["neighbours"](k=wrong)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "change",
    [
        lambda array: np.flip(np.flip(array).copy()),
        lambda array: array.astype(array.dtype.newbyteorder(">")),
        lambda array: array.astype(np.longdouble) if array.dtype.kind == "f" else array,
        read_only,
    ],
    ids=["flipped", "big-endian", "longdouble", "read-only"],
)
def test_arrays_of_numpy_may_have_any_layout(change, recwarn) -> None:
    z, y, new = samples()
    expected = METHODS["mahalanobis"]().fit_features(z, y).score_features(new)
    torch.set_warn_always(True)
    try:
        detector = METHODS["mahalanobis"]().fit_features(change(z.numpy()), change(y.numpy()))
        assert torch.equal(detector.score_features(change(new.numpy())), expected)
    finally:
        torch.set_warn_always(False)
    assert not list(recwarn)


def test_an_error_leaves_no_hook() -> None:
    model = Network()
    with pytest.raises(InputError, match=r"shape \[5, 2, 8, 8\]: .* takes such inputs"):
        METHODS["mahalanobis"]().fit(model, (torch.zeros(5, 2, 8, 8), torch.zeros(5).long()))
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())


# --- Bad input --------------------------------------------------------------------------------

Z, Y, _ = samples(60)
MAHALANOBIS = METHODS["mahalanobis"]


def with_nan():
    z = Z.clone()
    z[[3, 9], 1] = float("nan")
    return z


def fitted(**options):
    return MAHALANOBIS().fit_features(Z, Y, **options)


BAD = [
    (lambda: MAHALANOBIS().fit_features(Z), "needs labels; give whole numbers y"),
    (lambda: MAHALANOBIS().fit_features(Z, range(60)), "different label; .* use Marginal"),
    (lambda: MAHALANOBIS().fit_features(1e200 * Z, Y), "60 of 60 .* float64 .* by a constant"),
    (lambda: MAHALANOBIS().fit_features([[1.0, 2.0], [3.0]], [0, 1]), "give rows of one length"),
    (lambda: MAHALANOBIS().fit_features(None, Y), "features have type object; give numbers$"),
    (lambda: MAHALANOBIS().fit_features(Z, Y, seed=-1), "seed is -1"),
    (
        lambda: METHODS["energy"]().fit_features(Z, logits=Z).score_features(Z, logits=Z[:, :2]),
        "logits have 2 columns, .* fitted to 5",
    ),
    (lambda: MAHALANOBIS().fit_features(Z, Y[:-1]), "60 samples but 59 labels"),
    (lambda: MAHALANOBIS().fit_features(Z, Y.double()), "give whole numbers"),
    (lambda: MAHALANOBIS().fit_features(Z[:, 0], Y), r"give numbers \[N, D\]"),
    (lambda: MAHALANOBIS().fit_features(Z[:0], Y[:0]), "no samples"),
    (lambda: MAHALANOBIS().fit_features(with_nan(), Y), "2 of 60 rows .* NaN .* first row 3"),
    (lambda: MAHALANOBIS().fit_features(0 * Z + 3, Y), "same features"),
    (lambda: MAHALANOBIS().fit_features(Z, Y, hold_out=1.0), "hold_out is 1.0"),
    (lambda: MAHALANOBIS().fit_features(Z, Y, logits=Z[:5]), "60 samples but 5 rows of logits"),
    (lambda: MAHALANOBIS().fit_features(Z, Y, hold_out=0).set_reject(0.1), "hold_out=0.2"),
    (
        lambda: MAHALANOBIS().fit_features(Z, Y, hold_out=0).reject_features(Z),
        "0 samples were held",
    ),
    (lambda: MAHALANOBIS().fit_features(Z, Y).set_reject(0.001), "give at least 999"),
    (lambda: MAHALANOBIS().score_features(Z), "not fitted; call fit"),
    (
        lambda: MAHALANOBIS().fit_features(Z, Y).score_features(Z[:, :2]),
        "2 columns, .* fitted to 5",
    ),
    (lambda: MAHALANOBIS().fit_features(Z, Y).score(Z), r"no model; call attach\(model\)"),
    (lambda: MAHALANOBIS(normalise="l2"), 'give "auto", "none", "unit"'),
    (lambda: MAHALANOBIS(shrinkage=2), "share from 0"),
    (lambda: MAHALANOBIS(rank=0), "rank is 0"),
    (lambda: MAHALANOBIS(rank=True), "rank is True"),
    (lambda: METHODS["mahavar"](weight="x"), "weight is 'x'"),
    (lambda: METHODS["mahavar"]().fit_features(Z, 0 * Y), "1 class, .* use Marginal"),
    (lambda: METHODS["relative"]().fit_features(Z, 0 * Y), "1 class, .* use Marginal"),
    (lambda: METHODS["energy"]().fit_features(Z), "needs logits or labels"),
    (lambda: METHODS["energy"]().fit_features(Z, 0 * Y), "compares classes, and there is 1"),
    (lambda: METHODS["energy"](temperature=0), "positive number"),
    (lambda: METHODS["gen"](gamma=2), "at most 1"),
    (lambda: METHODS["neighbours"](k=0), "at least 1"),
    (lambda: MAHALANOBIS().fit(Network(), images()[0]), "needs labels; give whole numbers y"),
    (lambda: MAHALANOBIS().fit(Network(), []), "no samples"),
    (lambda: MAHALANOBIS().fit(Network(), images(), layer="body"), "no layer 'body'"),
    (lambda: MAHALANOBIS().fit(len, images()), "give an nn.Module"),
    (lambda: Detector.load("nothing.safetensors"), "cannot be read as a detector"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused_in_one_line(call, message) -> None:
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
