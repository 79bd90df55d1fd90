"""Slips of the hand get one line each, and what an audit leaves alone it says."""

import pytest
import torch
from torch import nn

import mahalens
from mahalens.errors import InputError

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 3}, r"nodes is 3, wanted a list of units, such as \[3\]"),
        ({"batch_size": 2.5}, "batch_size is 2.5, wanted a whole number"),
        ({"predict": lambda output: output["a"]}, "predict fails on the model's output, a Tensor"),
        ({"predict": lambda output: output}, r"predict gives \[20, 3\], wanted .* \[20\]"),
        ({"predict": lambda output: 7}, "predict gives int, wanted the classes"),
    ],
)
def test_an_option_of_another_kind_is_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        mahalens.audit(small(), (X, Y), **options)
    assert "\n" not in str(caught.value)


def test_predict_gives_the_classes():
    model = small()
    record = mahalens.audit(model, (X, Y), predict=lambda output: output.argmin(1))
    assert record.accuracy == float((model(X).argmin(1) == Y).double().mean())


@pytest.mark.parametrize("target", [Y.float(), nn.functional.one_hot(Y)])
def test_targets_that_are_no_classes_are_named(target):
    record = mahalens.audit(small(), (X, target))
    assert record.data.labels == "none"
    assert any(f"{target.dtype} {list(target.shape)}" in note for note in record.notes)


def test_labels_and_targets_left_alone_on_purpose_need_no_word():
    assert mahalens.audit(small(), (X, Y)).notes == ()
    assert mahalens.audit(small(), (X, Y.float()), labelled=False).notes == ()


def test_something_else_than_a_record_is_refused():
    model = small()
    record = mahalens.audit(model, (X, Y))
    with pytest.raises(InputError, match="the record is a int"):
        mahalens.prune(model, 3)
    with pytest.raises(InputError, match="the other record is a int"):
        record.diff(3)
    with pytest.raises(InputError, match="there are 0, 2, and a name is a text, such as '0'"):
        record.layer(0)


def test_a_saved_record_may_be_read_by_whom_any_new_file_may(tmp_path):
    mahalens.audit(small(), (X, Y)).save(tmp_path / "audit.safetensors")
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
