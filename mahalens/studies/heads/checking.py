"""What a run of the heads study needs of its data, said before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from mahalens.data import LabelledData
from mahalens.data.tables import TEST_SHARE
from mahalens.errors import InputError
from mahalens.studies.heads.config import OTHER, HeadsConfig
from mahalens.studies.heads.task import held_share, known_of
from mahalens.studies.paired.config import part_of
from mahalens.studies.paired.samples import check_sets, is_split_anew, option_of, whole_set

FEWEST_HELD = 40
"""So many held-out samples at least are wanted to set a temperature and a threshold."""
FEWEST_OF_CLASS = 5
"""So many training samples of each class: one to hold out, and a spread to see in the others."""


def check(config: HeadsConfig) -> Mapping[str, Mapping[str, Any]]:
    """Load what a run needs, or say what is not there or does not fit; facts of each set."""
    facts = check_sets(config.data, config.train_size)
    for data in config.data:
        whole, told = whole_set(data), facts[part_of(data)]
        classes = len(whole.y.unique())
        known = classes
        if data in OTHER:
            _check_other(data)
            told["unknown"] = f"test samples of {OTHER[data]}"
        else:
            if classes < 3:
                raise InputError(
                    f"--data {data}: has {classes} classes, and one is left out for the unknown; "
                    "give data with at least 3"
                )
            known = known_of(classes)
            left_out = classes - known
            told["unknown"] = f"{left_out} of {classes} classes, left out by each trial"
            if len(whole.test_y.unique()) <= left_out and not is_split_anew(data):
                raise InputError(
                    f"--data {data}: its test samples are of {len(whole.test_y.unique())} classes, "
                    f"and {left_out} are left out; give test samples of every class"
                )
        _check_sizes(config, data, whole, known)
    return facts


def _check_other(data: str) -> None:
    try:
        whole_set(OTHER[data])
    except InputError as error:
        raise InputError(f"--data {data} takes {OTHER[data]} for the unknown: {error}") from None


def _check_sizes(config: HeadsConfig, data: str, whole: LabelledData, known: int) -> None:
    """See that enough is held out, whichever classes are known."""
    given = option_of(data, config.train_size)
    sizes = torch.bincount(whole.y).double()
    if is_split_anew(data):
        sizes = (1 - TEST_SHARE) * (sizes + torch.bincount(whole.test_y, minlength=len(sizes)))
    total = float(sizes.sum())
    share = 1.0 if config.train_size is None else min(1.0, config.train_size / total)
    sizes = sizes * share
    rarest = int(sizes.argmin())
    if float(sizes[rarest]) < FEWEST_OF_CLASS:
        count = math.floor(sizes[rarest])
        raise InputError(
            f"{given}: class {rarest} has {count} training sample{'' if count == 1 else 's'}; give "
            f"at least {FEWEST_OF_CLASS} of each"
        )
    smallest = sizes.sort().values[:known]
    held = int((smallest * held_share(int(smallest.sum()))).floor().sum())
    fewest = max(FEWEST_HELD, math.ceil(1 / config.reject_rate))
    if held < fewest:
        enough = 5 * (fewest + known) * share * total / float(smallest.sum())
        why = "to set a temperature and a threshold"
        if fewest > FEWEST_HELD:
            why = f"for --reject-rate {config.reject_rate:g}"
        raise InputError(
            f"{given}: {math.floor(smallest.sum())} training samples of {known} known classes, of "
            f"which {held} would be held out, and {fewest} are wanted {why}; give about "
            f"{math.ceil(enough):,} training samples in all"
        )
