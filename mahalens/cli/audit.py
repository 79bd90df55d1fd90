"""``mahalens audit`` reads a network as a set of distances; ``mahalens diff`` compares audits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from mahalens.cli.run import FOLDER, CommaSeparated, Shares, WholeNumbers, completing
from mahalens.data.named import IMAGES, PIXELS, SETS, SPLITS
from mahalens.errors import ConditionMet, InputError
from mahalens.progress import Display, HasProgress, printable

if TYPE_CHECKING:
    from mahalens.auditing.load import LoadedModel
    from mahalens.auditing.record import AuditRecord
    from mahalens.data.dataset import Samples

SAMPLE_SETS = {**SETS, **IMAGES}
"""The named sets that networks can be fed with."""
GRACE = 1.0
"""Seconds that a trusted program has to stop after Ctrl-C, before it is ended."""
WIDEST = 160
"""Columns of a table of layers, where the terminal has fewer."""


class Limits(CommaSeparated):
    """Several faults in one option, each with the share of units that may have it."""

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """Split the text into pairs of a fault and a share, 0 without one."""
        pairs = [part.partition(":") for part in super().convert(value, param, ctx)]
        try:
            limits = tuple((fault, float(share) if colon else 0.0) for fault, colon, share in pairs)
        except ValueError:
            limits = ()
        if not limits or not all(fault in FAULTS and 0 <= share < 1 for fault, share in limits):
            self.fail(
                f"{value!r} is not a list such as dead,duplicate:0.05; it takes "
                f"{', '.join(FAULTS)}, each with a share from 0 to 1",
                param,
                ctx,
            )
        return limits


FAULTS = {
    "dead": "dead",
    "rare": "rarely active",
    "saturated": "saturated",
    "duplicate": "duplicates",
    "mirrored": "mirrored",
}
"""Faults that ``--fail-on`` takes, each as a message puts it."""


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--data",
    required=True,
    metavar="NAME|FILE|DIR",
    help=f"{', '.join(SAMPLE_SETS)}; an npz or safetensors file with x and perhaps y; or a folder "
    "with a folder of images for each class.",
    shell_complete=completing(SAMPLE_SETS, files=True),
)
@click.option(
    "--trust",
    is_flag=True,
    help="Load MODEL although it is a program, which can run any code of its maker.",
)
@click.option("--weights", type=FOLDER, metavar="FILE", help="Weights for MODULE:FACTORY.")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option("--limit", type=int, metavar="N", help="Take N of the samples, drawn at random.")
@click.option("--shape", type=WholeNumbers(), help="Shape of a sample for the model, as 1,28,28.")
@click.option("--pixels", type=click.Choice(PIXELS), default="scaled", show_default=True)
@click.option("--image-size", type=WholeNumbers(), metavar="H,W", help="Resize images to this.")
@click.option("--batch-size", type=int, default=256, show_default=True)
@click.option(
    "--perturb",
    is_flag=True,
    help="Also measure accuracy with each layer perturbed: nine more passes for each layer.",
)
@click.option("--no-labels", is_flag=True, help="Ignore labels in the data.")
@click.option("--clusters", type=int, metavar="K", help="Without labels: find K clusters instead.")
@click.option("--nodes", type=WholeNumbers(), help="Units whose histograms are kept.")
@click.option("--layers", type=CommaSeparated(), help="Layers to read.  [default: all]")
@click.option(
    "--rare",
    type=Shares(),
    help="Activity shares below which a unit counts as rarely active.  [default: 0.05,0.01]",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=FOLDER, required=True, metavar="DIR", help="Folder for the audit.")
@click.option("--force", is_flag=True, help="Replace the audit that DIR holds.")
@click.option(
    "--fail-on",
    type=Limits(),
    metavar="FAULT[:SHARE],...",
    help=f"Exit with 1 if any unit, or more than this share of all units, has a fault: "
    f"{', '.join(FAULTS)}.",
)
@click.option("--quiet", is_flag=True, help="No progress, no tables.")
def audit(
    model: str,
    weights: Path | None,
    trust: bool,
    out: Path,
    force: bool,
    fail_on: tuple[tuple[str, float], ...] | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Read a trained network as a set of distances.

    MODEL is package.module:factory with --weights, or with --trust a program of torch.export
    (.pt2) or a TorchScript file.
    """
    if options["layers"] == ():
        raise InputError("--layers is empty: give some, or leave it out")
    if options["batch_size"] < 1:
        raise InputError(f"--batch-size is {options['batch_size']}, wanted at least 1")
    from mahalens.auditing.recognise import recognise_model
    from mahalens.report.audit.folder import require_free, write_audit

    require_free(out, force=force)

    factory = recognise_model(model, weights, trust=trust) == "factory"
    with contextlib.nullcontext() if factory else in_child_process(model):
        with Display(quiet=quiet) as display, running_user_code(model):
            record = _read_network(model, weights, trust, display, options)
            page = write_audit(record, out, force=force)
        if not quiet:
            _print(record)
        click.echo(f"report: {printable(page)}")
        _judge(record, fail_on or ())


def _judge(record: AuditRecord, limits: Sequence[tuple[str, float]]) -> None:
    """Raise :class:`ConditionMet` if more units have a fault than its limit allows."""
    from mahalens.auditing.watch import count_faults

    total = sum(layer.units_count for layer in record.layers)
    counts = [count_faults(layer) for layer in record.layers]
    for fault, share in limits:
        count = sum(own[fault] for own in counts)
        if count > share * total:
            limit = f", a share of more than {share:.4g}" if share else ""
            raise ConditionMet(
                f"--fail-on {fault}: {count:.0f} of {total} units are {FAULTS[fault]}{limit}"
            )


@click.command()
@click.argument("before", type=FOLDER, metavar="BEFORE_DIR")
@click.argument("after", type=FOLDER, metavar="AFTER_DIR")
def diff(before: Path, after: Path) -> None:
    """Show what changed from one audit of a network to a later one."""
    from mahalens.report.audit.folder import load_audit_folder

    click.echo(str(load_audit_folder(before).diff(load_audit_folder(after))))


@contextlib.contextmanager
def in_child_process(model: str) -> Iterator[None]:
    """Work within in a child process, which this one ends on Ctrl-C and judges when it crashes.

    Trusted programs run in native code, which may never return to Python, nor let any other thread
    run, and may crash the process.
    """
    if "torch" in sys.modules or not hasattr(os, "fork"):
        yield  # with threads under way a process must not be split
        return
    child = os.fork()
    if not child:
        try:
            yield
        except KeyboardInterrupt:  # which the parent reports
            _end_with_signal(signal.SIGINT)
        return

    def stop(number: int, frame: object) -> None:
        os.kill(child, signal.SIGKILL)
        _end_with_signal(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        code = _wait_interrupted(child)
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        raise InputError(
            f"{model}: the program crashed ({signal.Signals(-code).name}) and was ended; audit the "
            f"network that it was made from"
        )
    sys.exit(code)


def _end_with_signal(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _wait_interrupted(child: int) -> int:
    """Wait for a child that Ctrl-C perhaps reached as well; interrupt it, and at last kill it."""
    try:
        for number in (signal.SIGINT, signal.SIGKILL):
            until = time.monotonic() + GRACE
            while time.monotonic() < until:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)
                time.sleep(0.02)
            os.kill(child, number)
    except KeyboardInterrupt:  # once more, in a hurry
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # the cursor, which a progress bar hides
    return -signal.SIGINT


def _read_network(
    spec: str, weights: Path | None, trust: bool, display: Display, options: dict[str, Any]
) -> AuditRecord:
    """Load the samples and the network, and audit it; ``options`` are those of the command."""
    import msgspec

    from mahalens.auditing.api import audit as audit_network
    from mahalens.auditing.load import load_fitting, shapes_to_try

    samples, shape = _load_samples(options), options["shape"]
    shapes = [samples.shape] if shape else shapes_to_try(samples.shape, samples.image)
    loaded, taken = load_fitting(spec, weights, samples.x, shapes, trust=trust)
    notes = list(loaded.notes)
    if taken != samples.shape:
        notes.append(f"samples are given to the model in the shape {list(taken)}")
        samples = samples.reshaped(taken)
    whole = loaded.whole_batches(len(samples.x))
    if whole < len(samples.x):
        notes.append(f"the last {len(samples.x) - whole} samples fill no batch and are left out")
        samples = samples.first(whole)
    for note in (f"data: {samples.source}", *notes):
        display.note(note)
    x = loaded.cast(samples.x)
    named = not all(name.isdecimal() for name in samples.classes)
    settings = {name: options[name] for name in ("clusters", "rare", "seed")}
    record = audit_network(
        loaded.module,
        x if samples.y is None else (x, samples.y),
        classes=samples.classes if named else None,
        batch_size=loaded.batch_size or options["batch_size"],
        **{name: options[name] for name in ("perturb", "nodes", "layers")},
        image=samples.image,
        source=samples.source,
        name=loaded.name,
        progress=_progress(display, len(x), _passes(loaded)),
        **{name: value for name, value in settings.items() if value is not None},
    )
    return msgspec.structs.replace(record, notes=(*notes, *record.notes))


def _load_samples(options: dict[str, Any]) -> Samples:
    from mahalens.data.files import load_samples

    size = options["image_size"]
    if size is not None and len(size) != 2:
        raise InputError(f"--image-size is {list(size)}, wanted H,W such as 32,32")
    samples = load_samples(
        *(options[name] for name in ("data", "split", "limit")),
        pixels=options["pixels"],
        image_size=size,
        seed=options["seed"],
    )
    if options["no_labels"]:
        samples = dataclasses.replace(samples, y=None, classes=())
    if options["shape"] is not None:
        samples = samples.reshaped(options["shape"])
    if options["perturb"] and samples.y is None:
        raise InputError(
            "--perturb is judged by accuracy, which needs labels, and the data has none; add y to "
            "it, or leave the option out"
        )
    return samples


@contextlib.contextmanager
def running_user_code(spec: str) -> Iterator[None]:
    """Run code of the user within: find it in this folder, and report how it ends in one line."""
    from mahalens.auditing.load import importing_from_here, without_hard_exit

    try:
        with without_hard_exit(), importing_from_here(spec):
            yield
    except SystemExit as error:
        raise InputError(f"{spec}: the model ends the process ({error}); let it return") from None
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).splitlines()[:1])
        if not isinstance(error, MemoryError) and "allocate" not in text:
            raise
        raise InputError(
            f"{spec}: there is not enough memory ({text or 'MemoryError'}); take fewer samples "
            f"with --limit, a smaller --batch-size or some of the --layers"
        ) from None


def _passes(loaded: LoadedModel) -> int:
    """Return about how often perturbing all layers runs the model."""
    from mahalens.auditing.perturb import TABLE_LEVELS

    matrices = sum(parameter.ndim > 1 for parameter in loaded.module.parameters())
    return max(1, matrices) * sum(map(len, TABLE_LEVELS.values()))


def _progress(display: Display, samples: int, passes: int) -> Callable[[str, int], None]:
    """Return what :func:`mahalens.audit` calls: it shows a bar or lines for each part."""
    parts: dict[str, tuple[int, str, Callable[[HasProgress], None]]] = {}
    amounts: dict[str, int] = {}

    def show(what: str, done: int) -> None:
        if what == "judging":  # takes a moment, and comes last
            for name, (total, _, _) in parts.items():
                update(name, total)
            parts.clear()
            return
        name = what.partition(" ")[0]
        perturbs = name == "perturbing"
        if name not in parts:
            size = (passes, "passes") if perturbs else (samples, "samples")
            parts[name] = (*size, display.stage(name))
            update(name, 0)
        # How many layers are perturbed is a guess until the end.
        update(name, min(amounts[name] + 1, parts[name][0] - 1) if perturbs else done)

    def update(name: str, done: int) -> None:
        total, unit, display_it = parts[name]
        amounts[name] = done
        display_it(SimpleNamespace(progress=(done, total, unit)))

    return show


def _print(record: AuditRecord) -> None:
    from rich.console import Console

    from mahalens.report.audit.tables import layers_table

    console, table = Console(highlight=False), layers_table(record)
    # On a narrow terminal lines wrap, rather than columns fold into single letters.
    widest = console.measure(table, options=console.options.update(width=WIDEST)).maximum
    console.width = max(console.width, widest)
    console.print(table)
    console.print(printable(record.verdict), markup=False, soft_wrap=True)
