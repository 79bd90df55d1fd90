"""Features of a model's samples: labels, padding and outputs of any shape."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import mahalens
from mahalens.detection import METHODS
from mahalens.detection.features import Source, pooled
from mahalens.errors import InputError

Y = torch.arange(200) % 2
X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) + 5 * Y[:, None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


NAMES = [(x, "one" if y else "zero") for x, y in zip(X, Y, strict=True)]


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ((X, Y.float()), r"torch.float32 \[200\]"),
        ((X, torch.eye(2).long()[Y]), r"torch.int64 \[200, 2\]"),
        (DataLoader(NAMES, 50, shuffle=True), "no tensor"),
        ([{"input": X, "labels": Y.float()}], r"'labels' of a batch \(torch.float32 \[200\]\)"),
    ],
    ids=["floats", "one-hot", "names", "dict"],
)
def test_labels_that_cannot_be_read_are_ignored_with_one_warning(data, shape) -> None:
    with pytest.warns(UserWarning, match=f"labels are ignored: .*{shape}.* not read") as caught:
        detector = mahalens.detect(network(), data, method="marginal")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert detector.classes.tolist() == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.score(data)  # no second time, and not for data that is only scored
        mahalens.detect(network(), (X, Y), method="marginal").score(data)
        list(Source(network()).read(data, labelled=False))


class Embedding(nn.Module):
    """Averages embeddings of the tokens that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[:, :, None]
        return self.head((self.e(input_ids) * mask).sum(1) / mask.sum(1))


def test_padding_changes_no_score() -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (200, 6), generator=draw)
    mask = torch.ones_like(tokens)
    mask[::2, 4:] = 0
    tokens = tokens * mask
    short = {"input_ids": tokens, "attention_mask": mask}
    long = {name: nn.functional.pad(part, (0, 18)) for name, part in short.items()}
    detector = mahalens.detect(Embedding(), short, method="marginal", layers="e")
    torch.testing.assert_close(detector.score(long), detector.score(short))
    other = {"input_ids": (tokens + 1) % 20, "attention_mask": mask}
    assert not torch.allclose(detector.score(other), detector.score(short))


def test_a_mask_counts_only_if_it_is_of_these_tokens() -> None:
    z = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 5, dtype=torch.bool)
    assert torch.equal(pooled(z, mask), z.mean(1))
    mask[0, 2:] = False
    mask[1] = False
    z[0, 4] = float("nan")  # as a softmax over no tokens gives
    means = pooled(z, mask)
    torch.testing.assert_close(means, torch.stack((z[0, :2].mean(0), 0 * z[1, 0], z[2].mean(0))))
    assert torch.equal(pooled(z[1:], mask[:2, :4]), z[1:].mean(1))
    large = torch.full((2, 40, 1), 3000.0, dtype=torch.float16)
    some = torch.ones(2, 40, dtype=torch.bool)
    some[0, -1] = False
    assert pooled(large, some).tolist() == [[3000.0], [3000.0]]


class Binary(nn.Module):
    """A classifier of two classes with one number per sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.h, self.o = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.o(self.h(x).relu()).squeeze(-1)


def test_one_number_per_sample_is_an_output() -> None:
    detector = mahalens.detect(Binary(), (X, Y))
    assert detector.layer == ("input of o",)
    assert detector.width == 8
    assert "energy" in detector.choice.notes
    assert detector.score(X[:3]).shape == (3,)
    with pytest.raises(InputError, match="Energy compares classes, and there is 1; use") as error:
        METHODS["energy"]().fit(Binary(), (X, Y))
    assert "\n" not in str(error.value)
    no_head = nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Flatten(0))
    assert mahalens.detect(no_head, X, method="marginal").width == 1
