"""Trains groups one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mahalens.errors import InputError, Interrupted, RunFolderError
from mahalens.studies.folder import RunFolder
from mahalens.studies.representation.costs import Costs
from mahalens.studies.representation.problem import Group, Problem, result_file
from mahalens.studies.representation.training import Result, train_group
from mahalens.studies.running import Watcher
from mahalens.train import SGD

Stop = Callable[[], bool]


@dataclass
class Work:
    """How far all groups are, in percent of the time they are expected to take."""

    done: float
    state: str = ""
    percent: bool = True

    @property
    def progress(self) -> tuple[float, float, str]:
        """How much is done, of how much, and a word on where it stands."""
        return self.done, 100.0, self.state


class Tally:
    """Adds up the expected time of groups that are done, for a progress that tells the truth."""

    def __init__(self, problem: Problem, groups: Sequence[Group], costs: Costs) -> None:
        self._epochs = problem.config.epochs
        self._samples = len(problem.data.y)
        self._costs = costs
        self._total = sum(self._seconds(group) for group in groups)
        self._done = 0.0

    def _seconds(self, group: Group) -> float:
        return group.count * self._costs[group.model].of_trial(self._samples, self._epochs)

    def waiting(self, folder: RunFolder, groups: Sequence[Group]) -> list[Group]:
        """The groups without a result; the others are counted, before anyone measures a pace."""
        left = []
        for group in groups:
            if folder.has(folder.path / result_file(group)):
                self.finish(group)
            else:
                left.append(group)
        return left

    def finish(self, group: Group) -> Work:
        """A group is done."""
        self._done += self._seconds(group)
        return Work(min(100.0, 100 * self._done / self._total), f"{label(group)} done")

    def during(self, group: Group, solver: SGD) -> Work:
        """A group is under way."""
        epoch, epochs, state = solver.progress
        done = self._done + self._seconds(group) * epoch / epochs
        told = f"{label(group)}, epoch {epoch:,} of {epochs:,}, {state}"
        return Work(min(99.9, 100 * done / self._total), told)


def label(group: Group) -> str:
    """A group for people.

    >>> label(Group("raw", "relu2", 0, 5))
    'relu2 raw, trials 0 to 4'
    """
    last = group.first + group.count - 1
    trials = f"trial {last}" if group.count == 1 else f"trials {group.first} to {last}"
    return f"{group.model} {group.pixels}, {trials}"


def run_locally(
    folder: RunFolder,
    problem: Problem,
    groups: Sequence[Group],
    costs: Costs,
    watcher: Watcher,
    should_stop: Stop | None,
    *,
    engine: str,
) -> None:
    """Train the groups that have no result yet, and write one for each."""
    tally = Tally(problem, groups, costs)
    waiting = tally.waiting(folder, groups)
    report = watcher.stage("training")
    for group in waiting:
        if should_stop is not None and should_stop():
            raise Interrupted("stopped by the user")
        result = _train(folder, problem, group, tally, report, should_stop, engine)
        folder.write_tensors(result_file(group), result)
        folder.checkpoint(group.name).unlink(missing_ok=True)
        report(tally.finish(group))


def _train(
    folder: RunFolder,
    problem: Problem,
    group: Group,
    tally: Tally,
    report: Callable[[Work], None],
    should_stop: Stop | None,
    engine: str,
) -> Result:
    checkpoint = folder.checkpoint(group.name)
    state: dict[str, Tensor] | None = None
    if checkpoint.exists():
        state = folder.read_tensors(checkpoint)
    try:
        return train_group(
            problem,
            group,
            engine=engine,
            state=state,
            save=lambda now: folder.write_tensors(str(checkpoint.relative_to(folder.path)), now),
            on_progress=lambda solver: report(tally.during(group, solver)),
            should_stop=should_stop,
        )
    except (KeyError, InputError) as error:
        if state is None:
            raise
        raise RunFolderError(
            f"{checkpoint}: does not fit this run ({error}); delete it to train this group from "
            "the start"
        ) from None
