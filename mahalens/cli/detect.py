"""``mahalens detect`` fits a detector of unknown samples and says what to expect of it."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mahalens.cli.audit import SAMPLE_SETS, in_child_process, running_user_code
from mahalens.cli.run import FOLDER, WholeNumbers, completing
from mahalens.data.named import PIXELS, SPLITS
from mahalens.errors import InputError
from mahalens.progress import Display, printable

if TYPE_CHECKING:
    from torch import nn

    from mahalens.data.dataset import Samples
    from mahalens.detection.record import Features


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--data",
    required=True,
    metavar="NAME|FILE|DIR",
    help=f"Known samples: {', '.join(SAMPLE_SETS)}; an npz or safetensors file with x and perhaps "
    "y; or a folder with a folder of images for each class.",
    shell_complete=completing(SAMPLE_SETS, files=True),
)
@click.option(
    "--unknown",
    metavar="NAME|FILE|DIR",
    help="Unknown samples to measure it on.",
    shell_complete=completing(SAMPLE_SETS, files=True),
)
@click.option("--method", default="auto", show_default=True, help="auto, or one method by name.")
@click.option("--layer", help="Layer that gives the features.  [default: before the last linear]")
@click.option(
    "--rate",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of known samples to reject.",
)
@click.option(
    "--hold-out",
    type=float,
    default=0.2,
    show_default=True,
    help="Share of the known samples that are not kept for measuring, to set the threshold by.",
)
@click.option("--trust", is_flag=True, help="Load MODEL although it is a program; see audit.")
@click.option("--weights", type=FOLDER, metavar="FILE", help="Weights for MODULE:FACTORY.")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option("--limit", type=int, metavar="N", help="Take N samples of each, drawn at random.")
@click.option("--shape", type=WholeNumbers(), help="Shape of a sample for the model, as 1,28,28.")
@click.option("--pixels", type=click.Choice(PIXELS), default="scaled", show_default=True)
@click.option("--image-size", type=WholeNumbers(), metavar="H,W", help="Resize images to this.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the detector.")
@click.option("--force", is_flag=True, help="Replace the detector that DIR holds.")
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def detect(model: str | None, trust: bool, weights: Path | None, out: Path, **options: Any) -> None:
    """Fit a detector of samples unlike the known ones, with a threshold that keeps its promise.

    MODEL is package.module:factory with --weights, or with --trust a program (see mahalens audit);
    or a pretrained network for images: efficientnet-lite0, -lite1, -lite2 or mobilenet-v2 (mahalens
    data fetch NAME). Without a MODEL the samples are features already.
    """
    if model is None and (weights is not None or trust or options["layer"]):
        raise InputError("--weights, --trust and --layer belong to a MODEL; name one first")
    if options["seed"] >= 2**63:
        raise InputError(f"--seed {options['seed']}: give a whole number of at most {2**63 - 1}")
    from mahalens.auditing.recognise import recognise_model
    from mahalens.data.backbones import BACKBONES
    from mahalens.report.detection import require_free

    require_free(out, force=options["force"])
    if model in BACKBONES:
        if weights is not None or trust:
            raise InputError(f"{model} has weights of its own; leave --weights and --trust out")
        is_program = False
    else:
        is_program = model is not None and recognise_model(model, weights, trust=trust) != "factory"
    with in_child_process(model or "") if is_program else contextlib.nullcontext():
        _detect(model, trust, weights, out, options)


def _detect(
    spec: str | None, trust: bool, weights: Path | None, out: Path, options: dict[str, Any]
) -> None:
    from mahalens.detection.record import NO_MODEL, try_detector
    from mahalens.report.detection import methods_table, write_detection

    with Display(quiet=options["quiet"]) as display, running_user_code(spec or NO_MODEL):
        known = _load(options["data"], options)
        unknown = None if options["unknown"] is None else _load(options["unknown"], options)
        reader = _Reader(spec, weights, trust, known, options)
        for line in (f"known: {known.source}", *reader.notes):
            display.note(line)
        features = reader.read(known)
        strange = None if unknown is None else reader.read(unknown)
        detector, record, scores = try_detector(
            features,
            strange,
            method=options["method"],
            rate=options["rate"],
            hold_out=options["hold_out"],
            seed=options["seed"],
            model=reader.name,
            known=known.source,
            unknown=None if unknown is None else unknown.source,
            layer=reader.layer,
            classes=known.classes,
            notes=tuple(reader.notes),
        )
        if reader.source is not None:
            detector.bind(reader.source)
        pictures = _pictures(known, unknown, scores)
        page = write_detection(out, detector, record, scores, pictures)
    if not options["quiet"] and strange is not None:
        methods_table(record).show()
    click.echo(f"report: {printable(page)}")
    click.echo(printable(record.answer))


def _load(spec: str, options: dict[str, Any]) -> Samples:
    from mahalens.data.files import load_samples

    samples = load_samples(
        spec,
        options["split"],
        options["limit"],
        pixels=options["pixels"],
        image_size=options["image_size"],
        seed=options["seed"],
    )
    return samples if options["shape"] is None else samples.reshaped(options["shape"])


class _Reader:
    """Turns samples into features, by a model or as they are."""

    def __init__(
        self,
        spec: str | None,
        weights: Path | None,
        trust: bool,
        known: Samples,
        options: dict[str, Any],
    ) -> None:
        from mahalens.auditing.load import load_fitting, shapes_to_try
        from mahalens.data.backbones import BACKBONES
        from mahalens.detection.features import Source
        from mahalens.detection.record import NO_MODEL

        self.notes: list[str] = []
        self.source: Source | None = None
        self.shape: tuple[int, ...] | None = None
        self.name = spec or NO_MODEL
        if spec is None:
            return
        layers = None if options["layer"] is None else [options["layer"]]
        if spec in BACKBONES:
            network, size = _backbone(spec, known, options)
            self.notes.append(f"images are brought to {size} x {size}")
            self.source = Source(network, layers)
            return
        shapes = [known.shape] if options["shape"] else shapes_to_try(known.shape, known.image)
        loaded, self.shape = load_fitting(spec, weights, known.x, shapes, trust=trust)
        self.notes += loaded.notes
        self.name = loaded.name
        self.cast = loaded.cast
        module: nn.Module = loaded.module
        self.source = Source(module, layers)

    @property
    def layer(self) -> str:
        """Name of the layer that features come from."""
        return "features" if self.source is None else self.source.names[0]

    def read(self, samples: Samples) -> Features:
        """Return the features of all samples."""
        import torch

        from mahalens.detection.record import Features

        if self.source is None:
            return Features(samples.x.reshape(len(samples.x), -1), None, samples.y)
        if self.shape is None:  # a pretrained network, which takes images of any size
            x = samples.reshaped(_channels_first(samples)).x
        else:
            if math.prod(samples.shape) != math.prod(self.shape):
                raise InputError(
                    f"samples have shape {list(samples.shape)}, but the model takes "
                    f"{list(self.shape)}; give samples of that shape (--image-size H,W resizes "
                    "images)"
                )
            x = self.cast(samples.reshaped(self.shape).x)
        readings = list(self.source.read(x))
        logits = [reading.logits for reading in readings if reading.logits is not None]
        return Features(
            torch.cat([reading.features[0] for reading in readings]),
            torch.cat(logits) if logits else None,
            samples.y,
        )


def _backbone(name: str, known: Samples, options: dict[str, Any]) -> tuple[nn.Module, int]:
    """Return a pretrained network and the height and width that it brings images to."""
    from mahalens.data.backbones import BACKBONES, load_backbone

    if options["pixels"] != "scaled":
        raise InputError(f"{name} takes pixels from 0 to 1; leave --pixels out")
    size = max(96, min(*_channels_first(known)[1:], BACKBONES[name].size))
    if options["image_size"]:
        size = max(options["image_size"])
    return load_backbone(name, size), size


def _channels_first(samples: Samples) -> tuple[int, ...]:
    """Return the shape [C, H, W] of images, with one or three channels."""
    image = samples.shape if samples.image is None else samples.image
    image = (1, *image) if len(image) == 2 else image
    if len(image) != 3 or image[0] not in (1, 3):
        raise InputError(
            f"samples have shape {list(samples.shape)}, but pretrained networks take images; give "
            "[H, W] or [C, H, W] with 1 or 3 channels, if need be with --shape"
        )
    return image


def _pictures(known: Samples, unknown: Samples | None, scores: Any) -> dict[str, Any]:
    """Return the most and least unusual samples as images, where they are images."""
    from mahalens.report.detection import unusual

    if known.image is None:
        return {}
    seen = known.x[scores.known_rows].reshape(-1, *known.image)
    kinds = {
        "known, least unusual": unusual(seen, scores.known_p, scores.known, most=False),
        "known, most unusual": unusual(seen, scores.known_p, scores.known, most=True),
    }
    if unknown is not None and unknown.image is not None:
        images = unknown.x.reshape(-1, *unknown.image)
        of_unknown = (images, scores.unknown_p, scores.unknown)
        kinds["unknown, least unusual"] = unusual(*of_unknown, most=False)
        kinds["unknown, most unusual"] = unusual(*of_unknown, most=True)
    return kinds
