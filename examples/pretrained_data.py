"""Inputs of known classes for the networks of ``audit_pretrained.py``."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

RATE = 16_000
TOPICS = {
    "mail": ("email", "mailbox.py", "smtplib.py", "imaplib.py", "poplib.py"),
    "numbers": ("decimal.py", "_pydecimal.py", "fractions.py", "statistics.py", "random.py"),
    "files": ("shutil.py", "pathlib.py", "os.py", "tarfile.py", "zipfile.py", "zipfile"),
    "network": ("socket.py", "ssl.py", "http", "urllib", "ftplib.py", "socketserver.py"),
    "tests": ("unittest", "doctest.py"),
    "threads": ("threading.py", "multiprocessing", "concurrent", "queue.py"),
    "dates": ("datetime.py", "_pydatetime.py", "calendar.py", "zoneinfo"),
    "code": ("ast.py", "inspect.py", "dis.py", "tokenize.py", "pdb.py", "importlib"),
}


def notes(count: int) -> tuple[Tensor, Tensor, list[str], Tensor]:
    """Frames [N, 1024] of drawn tones, the note of each, names and pitches in Hz.

    A tone has eight overtones of random strength and phase, is up to a tenth of a semitone out
    of tune, and has noise of a random strength up to a fifth of its own.
    """
    generator = torch.Generator().manual_seed(0)
    names = ["A3", "A#3", "B3", "C4", "C#4", "D4", "D#4", "E4", "F4", "F#4", "G4", "G#4"]
    pitches = 220 * 2 ** (torch.arange(12) / 12)
    y = torch.arange(12 * count) % 12

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    off = 2 ** ((uniform(len(y)) - 0.5) / 5 / 12)
    overtones = torch.arange(1, 9)
    phases = 2 * torch.pi * (
        (pitches[y] * off)[:, None, None] * overtones[:, None] * torch.arange(1024) / RATE
        + uniform(len(y), 8, 1)
    )  # fmt: skip
    strength = uniform(len(y), 8, 1) / overtones[:, None]
    tones = (strength * phases.sin()).sum(1)
    noise = torch.randn(tones.shape, generator=generator)
    x = _standard(tones) + 0.2 * uniform(len(y), 1) * noise
    return _standard(x), y, names, pitches


def voices(count: int) -> tuple[Tensor, Tensor, list[str]]:
    """Clips [N, 8192] of drawn sounds and the kind of each.

    Vowels come from a pulse train whose pitch glides, through three resonances that move from
    one vowel's to another's; then tones, hum with overtones, white noise and clicks.
    """
    generator = torch.Generator().manual_seed(1)
    names = ["vowels", "tones", "hum", "noise", "clicks"]
    y = torch.arange(len(names) * count) % len(names)
    made = [_sound(names[int(label)], generator) for label in y]
    x = torch.stack([0.1 * _standard(sound[None])[0] for sound in made])
    return x + 1e-3 * torch.randn(x.shape, generator=generator), y, names


def _sound(kind: str, generator: torch.Generator) -> Tensor:
    length = 8192
    time = torch.arange(length) / RATE

    def draw(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand(1, generator=generator))

    if kind == "tones":
        return torch.sin(2 * torch.pi * draw(100, 2000) * time)
    if kind == "hum":
        pitch = draw(50, 120)
        return sum(torch.sin(2 * torch.pi * pitch * k * time) / k for k in range(1, 20))
    if kind == "noise":
        return torch.randn(length, generator=generator)
    if kind == "clicks":
        return (torch.rand(length, generator=generator) < draw(5e-4, 5e-3)).float()
    # The phase of a pitch that glides; a pulse wherever a new turn begins.
    pitch = torch.linspace(draw(90, 220), draw(90, 220), length)
    pitch = pitch * (1 + 0.02 * torch.sin(2 * torch.pi * 5 * time))
    turns = (pitch / RATE).cumsum(0)
    pulses = (turns.floor().diff(prepend=torch.zeros(1)) > 0).float()
    pulses += 0.02 * torch.randn(length, generator=generator)
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]
    picked = torch.randint(len(vowels), (2,), generator=generator).tolist()
    filtered = [_resonances(pulses, vowels[number]) for number in picked]
    share = (0.5 - 0.5 * torch.cos(2 * torch.pi * draw(2, 5) * time)).clamp(0, 1)
    return filtered[0] * share + filtered[1] * (1 - share)


def _resonances(sound: Tensor, formants: tuple[float, ...]) -> Tensor:
    """The sound through a resonance of 80 Hz width at each formant."""
    frequencies = torch.fft.rfftfreq(len(sound), 1 / RATE)
    spectrum = torch.fft.rfft(sound) / (1 + frequencies / 300)
    for formant in formants:
        spectrum = spectrum / (
            1 - (frequencies / formant) ** 2 + 1j * 80 * frequencies / formant**2
        )
    return torch.fft.irfft(spectrum, len(sound))


def _standard(x: Tensor) -> Tensor:
    x = x - x.mean(1, keepdim=True)
    return x / x.std(1, keepdim=True)


def documentation(count: int) -> tuple[list[str], list[int], list[str]]:
    """First sentences of the docstrings of Python's library, by topic; nothing is imported."""
    root = Path(sysconfig.get_paths()["stdlib"])
    sentences, labels = [], []
    for label, parts in enumerate(TOPICS.values()):
        own: dict[str, None] = {}
        for part in parts:
            place = root / part
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                if path.exists():
                    own.update(dict.fromkeys(_first_sentences(path)))
        sentences += list(own)[:count]
        labels += [label] * min(count, len(own))
    return sentences, labels, list(TOPICS)


def _first_sentences(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").split("\n\n")[0].split(". ")[0]
            words = first.split()
            if 5 <= len(words) <= 40:
                found.append(" ".join(words))
    return found
