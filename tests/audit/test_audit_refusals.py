"""Slips of the hand get one line each, and what an audit leaves alone it says."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


class TestData:
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))

    def test_samples_made_again_are_no_scores(self):
        record = mahalens.audit(self.network, (self.x, torch.arange(30) % 2))
        assert record.accuracy is None
        assert "not taken for scores" in record.notes[0]
        assert mahalens.audit(self.network, (self.x, torch.arange(30) % 4)).accuracy is not None

    def test_labels_may_be_a_list(self):
        record = mahalens.audit(self.network, (self.x, [0, 1] * 15))
        assert record.data.counts == (15, 15)
        with pytest.raises(InputError, match="list of str, wanted whole numbers"):
            mahalens.audit(self.network, (self.x, ["a", "b"] * 15))

    def test_sparse_data_and_odd_pictures(self):
        with pytest.raises(InputError, match="the data is sparse"):
            mahalens.audit(self.network, self.x.to_sparse())
        with pytest.raises(InputError, match=r"image is \[3, 3\], wanted"):
            mahalens.audit(self.network, self.x, image=(3, 3))

    def test_what_is_not_said_elsewhere_is_a_note(self):
        data = TensorDataset(self.x, torch.arange(30) % 4)
        record = mahalens.audit(self.network, DataLoader(data, batch_size=7, shuffle=True))
        assert "in the order in which the loader gave them" in record.notes[0]
        record = mahalens.audit(self.network, data, clusters=3)
        assert record.notes == ("the data has labels, so no clusters were looked for",)

    def test_weights_that_are_no_numbers_are_the_headline(self):
        broken = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        with torch.no_grad():
            broken[0].weight[:2] = torch.nan
        record = mahalens.audit(broken, self.x)
        assert record.layers[0].verdict.word == "broken"
        assert "2 give NaN or infinite values" in record.layers[0].verdict.reason
        assert "2 of 3 units of layer 0 give no numbers" in record.verdict

    def test_features_must_come_from_the_inputs(self):
        weight = torch.ones(2, 4)
        good = mahalens.audit_features(self.x @ weight.T, weight=weight, inputs=self.x)
        assert good.layers[0].whitening is not None
        with pytest.raises(InputError, match="not weight times inputs plus bias"):
            mahalens.audit_features((self.x @ weight.T).relu(), weight=weight, inputs=self.x)

    def test_a_record_shows_its_answer(self):
        record = mahalens.audit(self.network, self.x)
        assert repr(record).startswith("AuditRecord('Sequential', 2 layers, 30 samples: ")
        assert len(repr(record)) < 300
