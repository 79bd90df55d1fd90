"""Sets of labelled sequences: what they are, their files and checksums. Needs no torch.

They are problems of the UCR and UEA archives, in the equal lengths and with the split into
training and test samples in which the Python package ``aeon`` carries them.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE, VERSION = "aeon", "1.4.0"
"""The package whose files these are, and the version they were taken from."""
BELOW = "datasets/data"
"""Where in the package they lie, a folder for each problem."""
GROUP = "sequences"
"""What all of them together are called where they are fetched."""


@dataclass(frozen=True)
class Problem:
    """A set of labelled sequences as it is published."""

    stem: str
    """What its files are called, without ``_TRAIN.ts`` and ``_TEST.ts``."""
    text: str
    """What it is, in a line."""

    @property
    def folder(self) -> str:
        """The folder it lies in; series brought to one length lie with those they are made of."""
        return self.stem.removesuffix("_eq")

    @property
    def files(self) -> tuple[str, str]:
        """The names of the files with the training and with the test samples."""
        return f"{self.stem}_TRAIN.ts", f"{self.stem}_TEST.ts"


PROBLEMS = {
    "gunpoint": Problem(
        "GunPoint", "a hand that draws a gun or points: 150 steps, 2 classes, 50 + 150"
    ),
    "italy-power-demand": Problem(
        "ItalyPowerDemand", "demand for power over a day: 24 hours, 2 seasons, 67 + 1,029"
    ),
    "arrow-head": Problem(
        "ArrowHead", "outlines of arrow heads: 251 steps, 3 kinds, 36 + 175 series"
    ),
    "basic-motions": Problem(
        "BasicMotions", "a watch's 6 sensors over 100 steps, 4 activities, 40 + 40 series"
    ),
    "japanese-vowels": Problem(
        "JapaneseVowels_eq", "12 coefficients of speech over 25 steps, 9 speakers, 270 + 370"
    ),
    "osuleaf": Problem("OSULeaf", "outlines of leaves: 427 steps, 6 kinds, 200 + 242 series"),
    "pickup-gesture": Problem(
        "PickupGestureWiimoteZ_eq", "gestures with a controller: 361 steps, 10 kinds, 50 + 50"
    ),
    "acsf1": Problem(
        "ACSF1", "power that appliances draw: 1,460 steps, 10 kinds, 100 + 100 series"
    ),
}

SHA256 = {
    "GunPoint_TRAIN.ts": "f842401779fd9800d247d8b33121a1a4643710a19b24917dbdd9a060ca8630d5",
    "GunPoint_TEST.ts": "79332750788a6227b325b96bd0d70130c8eb707b9731f8d7dec62b7a7d36017e",
    "ItalyPowerDemand_TRAIN.ts": "341269cb7e6cef96846b30e774580beec79addb93848ba360145219115a74b7c",
    "ItalyPowerDemand_TEST.ts": "26122451f87dd0387ef90b18bc8a86c041371b8a1c068004922b939971247144",
    "ArrowHead_TRAIN.ts": "a83c470aaf611a5f5284377cce27a5fc9f6292bc3d110257b0fd4905ced5ee72",
    "ArrowHead_TEST.ts": "5417dab42626d41df5e435bb22458c2df40dfad4bcd3b59559bbe72e20e84904",
    "BasicMotions_TRAIN.ts": "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
    "BasicMotions_TEST.ts": "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
    "JapaneseVowels_eq_TRAIN.ts": (
        "8958279c6296b97c8e34038346407935222db171492b84dffa3b930d087bc2d6"
    ),
    "JapaneseVowels_eq_TEST.ts": "bb83bb1aa6bfb17faae269f6829b7cac71de36fdd3264ee34137fe90270d5895",
    "OSULeaf_TRAIN.ts": "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc",
    "OSULeaf_TEST.ts": "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce",
    "PickupGestureWiimoteZ_eq_TRAIN.ts": (
        "b4963f9491f3c5db60ee20a11fedaab5badc476c5086e7592014b64dcf46571b"
    ),
    "PickupGestureWiimoteZ_eq_TEST.ts": (
        "982ae7fe7613cf7f4e8e5e7e06b014ae12c6efdc3d59f08abb28f78068b7a66c"
    ),
    "ACSF1_TRAIN.ts": "0646b90dc4843e02baed6b2ba345c5601a4991b6796565489cef1b2d92a7537b",
    "ACSF1_TEST.ts": "93e8aaeb44a10af181d24a156e60da7021193cd990ca28f263fccf3b905bfebf",
}
"""SHA-256 of each file."""

SEQUENCES = {name: problem.text for name, problem in PROBLEMS.items()}
"""The sets by name, with what each is."""
