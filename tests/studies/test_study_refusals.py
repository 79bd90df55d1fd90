"""Options and data that studies refuse, in one line and before anything is written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from small_runs import config_of

from mahalens.errors import InputError
from mahalens.studies.registry import load_study
from mahalens.studies.run import start

OPTIONS = {
    "gaussian": [
        ({"dim": 0}, "--dim 0: give a whole number of at least 1$"),
        ({"dim": 10**30}, f"--dim {10**30}: give a whole number of at most {10**12}$"),
        ({"samples": 1}, "--samples 1: give a whole number of at least 2$"),
        ({"solver": "sgd"}, "--solver sgd: unknown; give adam, newton$"),
        ({"dtype": "half"}, "--dtype half: unknown; give float32, float64$"),
        ({"models": ("abs", "relu", "abs")}, "--models: 'abs' is given twice; give it once$"),
    ],
    "ellipsoids": [
        ({"ranks": (4, 97)}, "--ranks 97: is more than --dim 96"),
        ({"ranks": (0,)}, "--ranks 0: give a whole number of at least 1"),
        ({"ranks": (4, 4)}, "--ranks: 4 is given twice"),
        ({"ranks": ()}, "--ranks is empty"),
        ({"noise": -0.1}, "--noise -0.1: give a number of at least 0"),
        ({"published": True, "data": "digits"}, "leave one of them out"),
        ({"data": "digits", "shrinkage": 1.0}, "--shrinkage 1.0: give a number from 0 to below 1"),
        ({"data": "digits", "shrinkage": math.nan}, "--shrinkage nan"),
        ({"clusters": (2,)}, "--clusters without --data"),
        ({"train_size": 10}, "--train-size without --data"),
        ({"shrinkage": 0.2}, "--shrinkage without --data"),
    ],
    "representation": [
        ({"epochs": 0}, "--epochs 0: give"),
        ({"train_size": 1}, "--train-size 1: give"),
        ({"pixels": "grey"}, "--pixels grey: unknown; give normalised, raw"),
        ({"pixels": ()}, "--pixels is empty: give some of normalised, raw"),
        ({"bias": "maybe"}, "--bias maybe: give no, yes or both"),
        ({"models": ("relu3",)}, "--models relu3: unknown model; give all, primary"),
        ({"depth": 0}, "--depth 0: give a whole number of at least 1"),
        ({"depth": 101}, "--depth 101: give a whole number of at most 100"),
        ({"nodes": (128,)}, "--nodes 128: give whole numbers of at most 127"),
        ({"published": True, "epochs": 7}, "--published with --epochs 7"),
        ({"published": True, "data": "fashion-mnist"}, "--published with --data fashion-mnist"),
        ({"group": 0}, "--group 0: give"),
    ],
    "perturbation": [
        ({"published": True, "data": "digits"}, "--published with --data digits"),
        ({"published": True, "networks": "mine"}, "--from with --published: its networks are"),
        ({"pixels": "grey"}, "--pixels grey"),
        ({"models": ("foo",)}, "--models foo: unknown model"),
        ({"networks": "nowhere"}, "nowhere: there is no such folder"),
    ],
    "activations": [
        ({"models": ["gelu3"]}, "--models gelu3: unknown; give relu, relu2, relu2-neg"),
        ({"pixels": "both"}, "--pixels both: unknown; give normalised, raw"),
        ({"solver": "newton"}, "--solver newton: unknown; give sgd, adam"),
        ({"published": True, "data": ["digits"]}, "--published with --data digits"),
        ({"published": True, "solver": "adam"}, "--published with --solver adam"),
    ],
    "hybrid": [
        ({"hidden": 12}, "--hidden 12: give 8 or a multiple of it, so that shares are whole"),
        ({"hidden": 0}, "--hidden 0: give a whole number of at least 1"),
        ({"narrow": 6}, "--narrow 6: give 4 or a multiple of it"),
        ({"narrow": 10**9}, "--narrow 1000000000: give a whole number of at most 100000"),
        ({"published": True, "train_size": 9}, "--published with --train-size at most 9"),
    ],
    "init": [
        ({"data": ["iris", "iris"]}, "'iris' is given twice"),
        ({"image_rates": (0.1, -1.0)}, "--image-rates -1.0: give a number of at least"),
        ({"table_rates": (math.nan,)}, "--table-rates nan: give a number of at least"),
        ({"table_rates": (math.inf,)}, "--table-rates inf: give a number of at most"),
        ({"table_rates": ()}, "learning rates of none; give positive numbers"),
    ],
    "transfer": [
        ({"data": ["tables", "wine"]}, "--data: 'wine' is given twice"),
        ({"models": ["dtw"], "data": ["wine"]}, "--models dtw: these are for sequences, and"),
        ({"rates": ()}, "no learning rates; give some above 0"),
    ],
    "heads": [
        ({"reject_rate": 1.0}, "--reject-rate 1.0: give a number between 0 and 1"),
        ({"reject_rate": 0.0}, "--reject-rate 0.0: give a number between 0 and 1"),
        ({"compactness": -1.0}, "--compactness -1.0: give a number of at least 0"),
        ({"compactness": math.nan}, "--compactness nan: give a number of at least 0"),
    ],
}
REAL = {"data": "digits", "dim": None}
DATA = {
    "gaussian": [
        ({"gaussian": Path("three.json"), "dim": 2}, "has 3 dimensions, but --dim is 2"),
        ({"gaussian": Path("huge.json"), "dim": None}, "--dtype float32: cannot hold the samples"),
        ({"gaussian": Path("tiny.json"), "dim": None}, "--dtype float32: cannot hold the samples"),
        ({"gaussian": Path("far.json"), "dim": None}, "--dtype float32: too coarse for this Gauss"),
        ({"samples": 10**12}, "--dim 2 with --samples 1000000000000: does not fit in"),
    ],
    "ellipsoids": [
        ({**REAL, "ranks": (65,)}, "--ranks 65: is more than the 64 inputs"),
        ({**REAL, "train_size": 1438}, "train_size is 1438 and digits has 1437 training samples"),
        (
            {**REAL, "train_size": 600, "clusters": (4, 40)},
            r"\d+ of the 600 .* 2 for each of 40 cl",
        ),
        ({**REAL, "train_size": 10, "clusters": ()}, "has 1 of the 10 .* at least 2, to see any"),
        ({**REAL, "train_size": 5}, "at least 10"),
    ],
    "clusters": [
        ({"hidden": 20}, "--hidden 20: abs-classes-clusters starts each unit on an axis"),
        ({"samples": 2, "hidden": 6}, "4 clusters of 2 samples in 2-D have 4"),
    ],
    "representation": [
        ({"train_size": 2000}, "--train-size 2000: digits has 1,437 training samples"),
        ({"train_size": 5}, "--train-size 5: digits has 1,437 training samples of 10 classes"),
        ({"data": "nosuch"}, "nosuch: there is no such set, folder or file; "),
        ({"data": "flat.npz", "train_size": None}, "all pixels are equal"),
    ],
    "activations": [({"train_size": 5}, "--train-size 5: digits has 10 classes")],
    "hybrid": [({"train_size": 12}, "--data iris: 12 training samples leave none")],
    "init": [
        ({"data": ["digits"], "train_size": 100}, "100 training samples for a hidden layer of 128"),
        ({"data": ["digits"], "train_size": 3}, "--train-size 3"),
        ({"data": ["nowhere.npz"]}, "nowhere.npz"),
        ({"data": ["rare.npz"]}, "class 2 has 1 of the 200 training samples; give at least 2"),
    ],
}


def rows(table):
    return [(name, *row) for name, some in table.items() for row in some]


@pytest.mark.parametrize(("name", "options", "message"), rows(OPTIONS))
def test_options(name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        load_study(name).config.with_defaults(**options)
    assert "\n" not in str(caught.value)


def write_gaussian(name, mean, variances):
    covariance = np.diag(variances).tolist()
    Path(name).write_text(json.dumps({"mean": mean, "covariance": covariance}))


@pytest.mark.parametrize(("name", "options", "message"), rows(DATA))
def test_data(tmp_path, monkeypatch, name, options, message):
    monkeypatch.chdir(tmp_path)
    np.savez("flat.npz", x=np.full((30, 4), 7.0), y=np.arange(30) % 3)
    x, y = np.random.default_rng(0).normal(size=(200, 5)), np.array([*(np.arange(199) % 2), 2])
    np.savez("rare.npz", x=x, y=y, test_x=x, test_y=y)
    write_gaussian("three.json", [0, 0, 0], [1.0, 1.0, 1.0])
    write_gaussian("huge.json", [0, 0], [1e200, 1e200])
    write_gaussian("tiny.json", [0, 0], [1e-200, 1e-200])
    write_gaussian("far.json", [1e12, 1e12], [1.0, 1.0])
    with pytest.raises(InputError, match=message) as caught:
        start(load_study(name), config_of(name, **options), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("variance", [1e200, 1e-200])
def test_double_precision_holds_the_samples_of_extreme_gaussians(tmp_path, monkeypatch, variance):
    monkeypatch.chdir(tmp_path)
    write_gaussian("mine.json", [0, 0], [variance, variance])
    config = config_of("gaussian", gaussian=Path("mine.json"), dim=None, dtype="float64")
    start(load_study("gaussian"), config, tmp_path / "run").close()
