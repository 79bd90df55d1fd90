"""The data of an audit: whatever form it comes in, and the classes of its samples."""

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from twin import small

import mahalens
from mahalens.auditing.batches import DataBatches
from mahalens.errors import InputError
from mahalens.nn import Abs

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3


@pytest.mark.parametrize("target", [Y.float(), nn.functional.one_hot(Y)])
def test_targets_that_are_no_classes_are_named(target):
    record = mahalens.audit(small(), (X, target))
    assert record.data.labels == "none"
    assert any(f"{target.dtype} {list(target.shape)}" in note for note in record.notes)


@pytest.mark.parametrize("key", ["label", "labels"])
def test_targets_in_a_dict_that_are_no_classes_are_named(key):
    record = mahalens.audit(small(), [{"input": X, key: Y.float()}])
    assert any(f"'{key}' of a batch (torch.float32 [30]) is not" in note for note in record.notes)
    record = mahalens.audit(small(), [{"input": X, "labels": Y.float(), "label": Y}])
    assert record.notes == ()
    assert record.data.counts == (10, 10, 10)


def test_labels_and_targets_left_alone_on_purpose_need_no_word():
    assert mahalens.audit(small(), (X, Y)).notes == ()
    assert mahalens.audit(small(), (X, Y.float()), labelled=False).notes == ()


@pytest.mark.parametrize("labels", [Y.tolist(), Y.numpy(), Y[:, None], Y.to(torch.uint8)])
def test_labels_come_in_many_forms(labels):
    record = mahalens.audit(small(), (X.numpy(), labels), classes=["a", "b", "c", "d"])
    assert record.data.counts == (10, 10, 10, 0)
    assert record.data.classes == ("a", "b", "c", "d")


def test_samples_made_again_are_no_scores():
    record = mahalens.audit(small(outputs=4), (X, torch.arange(30) % 2))
    assert record.accuracy is None
    assert "not taken for scores" in record.notes[0]
    assert mahalens.audit(small(outputs=4), (X, torch.arange(30) % 4)).accuracy is not None


def test_clusters_take_the_place_of_labels():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=draw) + 20 * (torch.arange(400) % 3)[:, None]
    network = nn.Sequential(nn.Linear(2, 1), Abs())
    network[0].weight.data, network[0].bias.data = torch.tensor([[1.0, 0.0]]), torch.tensor([-20.0])
    record = mahalens.audit(network, x, clusters=3)
    assert record.data.labels == "clusters"
    assert sorted(record.data.counts) == [133, 133, 134]
    assert record.data.classes == ("cluster 0", "cluster 1", "cluster 2")
    assert record.layers[0].hyperplanes.through.all()
    assert record.accuracy is None
    labelled = mahalens.audit(small(), (X, Y), clusters=3)
    assert labelled.notes == ("the data has labels, so no clusters were looked for",)


def test_classes_are_the_labels_that_occur():
    draw = torch.Generator().manual_seed(0)
    y, order = torch.arange(1200) % 60, torch.randperm(60, generator=draw)
    x = torch.randn(1200, 12, generator=draw) + 3 * torch.randn(60, 12, generator=draw)[y]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 60))
    plain = mahalens.audit(model, (x, order[y]), batch_size=100)
    far = mahalens.audit(model, (x, 100 * order[y]), batch_size=100)
    assert far.data.classes == tuple(str(100 * label) for label in range(60))
    assert far.data.counts == plain.data.counts
    for name in ("class_mean", "class_std", "class_active", "class_quantiles", "silent_by_class"):
        one, other = (getattr(record.layers[0].units, name) for record in (plain, far))
        assert torch.equal(one, other)
    assert torch.equal(plain.layers[0].histograms.counts, far.layers[0].histograms.counts)
    assert torch.equal(plain.example_labels, far.example_labels)
    assert plain.layers[0].verdict == far.layers[0].verdict
    want = x[order[y] == 7] @ model[0].weight.T + model[0].bias
    assert torch.allclose(far.layers[0].units.class_mean[7], want.mean(0).double(), atol=1e-5)
    # The largest of 60 scores is no label from 0 to 5900.
    assert plain.accuracy is not None
    assert far.accuracy is None
    assert any("60 outputs, but the labels go up to 5900" in note for note in far.notes)


def test_accuracy_compares_with_the_labels_themselves():
    x = torch.eye(6)[torch.tensor([1, 4, 4, 1, 5])]
    record = mahalens.audit(nn.Linear(6, 6), (x, torch.tensor([1, 4, 4, 1, 5])), batch_size=2)
    assert record.data.classes == ("1", "4", "5")
    model = nn.Linear(6, 7)
    with torch.no_grad():
        model.weight.copy_(torch.eye(7, 6))
        model.bias.zero_()
    record = mahalens.audit(model, (x, torch.tensor([1, 4, 4, 1, 4])), batch_size=2)
    assert (record.data.classes, record.accuracy) == (("1", "4"), 0.8)


def test_labels_that_nearly_every_sample_has_its_own_of_are_refused():
    x = torch.randn(1500, 3)
    with pytest.raises(InputError, match="1,500 different labels in 1,500 samples"):
        mahalens.audit(nn.Linear(3, 2), (x, 7 * torch.arange(1500)))
    few = torch.arange(5) * 10**12  # a few samples may all differ
    assert len(mahalens.audit(nn.Linear(3, 2), (x[:5], few)).data.classes) == 5


def test_a_list_of_tensors_is_a_list_of_batches_unless_it_ends_in_labels():
    model, x = nn.Linear(3, 2), torch.randn(7, 3)
    labels = torch.arange(7) % 2
    for data, samples in (([x, x[:4]], 11), ([x], 7), ([x, x, x], 21), ([x, labels], 7)):
        assert mahalens.audit(model, data).data.samples == samples
    assert mahalens.audit(model, [x, labels]).accuracy is not None


def test_a_loader_with_a_sampler_of_batches_repeats_itself_and_is_left_as_it_was():
    data = TensorDataset(torch.arange(200.0)[:, None])
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    order = BatchSampler(RandomSampler(data, generator=generator), 20, drop_last=False)
    model = nn.Sequential(nn.Linear(1, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model[0].bias.zero_()
    record = mahalens.audit(model, DataLoader(data, batch_sampler=order))
    most = int(record.layers[0].prototypes.active_sample[0, 0])
    assert record.examples[record.example_samples.tolist().index(most)].item() == 199
    assert torch.equal(generator.get_state(), before)
    assert "samples are numbered in the order in which the loader gave them" in record.notes


def test_labels_that_are_ignored_may_be_anything():
    x, labels = torch.randn(6, 3), torch.tensor([0, 1, -1, 0, 1, -1])
    for data in ((x, labels), [{"x": x, "labels": labels}], DataLoader(TensorDataset(x, labels))):
        assert sum(batch.size for batch in DataBatches(data, 8, labelled=False)) == 6
        with pytest.raises(InputError, match="the data has the label -1; give classes from 0 on"):
            list(DataBatches(data, 8))
