"""What a person sees: progress, tables and errors, on a terminal or in a log; JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from builder.errors import BuilderError

if TYPE_CHECKING:
    from builder.partition.plan import PartitionPlan
    from builder.pipeline import BuildResult
    from builder.runtime.manifest import Manifest
    from builder.types import TensorSpec
    from builder.verify.compare import VerificationReport

__all__ = [
    "Reporter",
    "make_table",
    "output",
    "print_error",
    "print_json",
    "show_build",
    "show_checks",
    "show_manifest",
    "show_plan",
    "size_text",
]


_LOG_SECONDS = 5.0
_UNWRAPPED = 100_000


def output() -> Console:
    """Standard output; where it is no terminal, nothing is wrapped, so that one line is one thing for other programs."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(soft_wrap=True, width=_UNWRAPPED, highlight=False)


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")


def print_error(error: BuilderError, as_json: bool) -> None:
    """The error in a few lines on standard error; with `as_json` as a document on standard output too."""
    if as_json:
        print_json({"error": {"stage": error.stage, "what": error.what, "where": error.where, "fix": error.fix}})
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")


class Reporter:
    """Progress of a build: one live line on a terminal, one line per stage elsewhere. Goes to standard error."""

    def __init__(self, quiet: bool = False) -> None:
        # The stream as it is now: stages that silence their libraries replace sys.stderr meanwhile.
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._live = self._console.is_terminal and not quiet
        self._status = self._console.status("") if self._live else None
        self._stage = ""
        self._started = self._said = time.monotonic()

    def __enter__(self) -> Reporter:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def stage(self, name: str) -> None:
        """A stage begins."""
        self._stage = name
        self._say(name)

    def step(self, text: str, done: int, total: int) -> None:
        """Inside a stage; a total of 0 is not known, and in a log such steps are told every few seconds only."""
        if self._status is None and not total and time.monotonic() - self._said < _LOG_SECONDS:
            return
        self._say(f"{self._stage}: {text}, {done + 1}{f' of {total}' if total else ''}")

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._console.print(f"note: {escape(text)}")

    def warn(self, text: str) -> None:
        """A line that stays, also in quiet mode."""
        self._console.print(f"[yellow]warning:[/] {escape(text)}")

    def _say(self, text: str) -> None:
        if self._quiet:
            return
        self._said = time.monotonic()
        elapsed = f"{time.monotonic() - self._started:6.1f} s"
        if self._status is not None:
            self._status.update(f"{elapsed}  {escape(text)}")
        else:
            self._console.print(f"{elapsed}  {escape(text)}")


def size_text(size: int) -> str:
    """Bytes as a person reads them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def make_table(title: str, *columns: str) -> Table:
    """A table with a title and columns."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show_build(result: BuildResult) -> None:
    """Segments, compiler, time, size, cache hit or miss, worst error, and the path."""
    table = make_table("Segments", "segment", "compiler", "operators", "time", "size", "cache")
    for item in result.segments:
        cached = {True: f"hit, saved {item.saved_seconds:.1f} s", False: "miss", None: ""}[item.hit]
        table.add_row(
            item.segment.name,
            item.compiler,
            str(item.segment.operator_count),
            f"{item.seconds:.1f} s",
            size_text(item.size),
            cached,
        )
    out = output()
    out.print(table)
    _show_fallbacks(result.plan, out)
    _show_report(result.report, out)
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.items())
    out.print(f"time: {sum(result.seconds.values()):.1f} s ({stages})", markup=False)
    layout, batching = result.placement.layout, result.placement.batching
    out.print(f"layout: {layout.layout} ({layout.reason})", markup=False)
    joined = f"up to {batching.max_batch_size} requests" if batching.batched else "no"
    out.print(f"dynamic batching: {joined} ({batching.reason})", markup=False)
    publication = result.publication
    if publication.created:
        out.print(f"published {publication.name} version {publication.version}: {publication.path}", markup=False)
    else:
        out.print(
            f"unchanged: version {publication.version} has this content already: {publication.path}", markup=False
        )


def _show_report(report: VerificationReport, out: Console) -> None:
    if not report.verified:
        out.print(f"[yellow]not verified here:[/] {escape(report.reason)}")
        return
    worst = report.worst
    if worst is not None:
        out.print(
            f"verified against eager PyTorch at {report.points} points: worst relative error "
            f"{worst.relative:.1e} (output {worst.output}, {worst.point})",
            markup=False,
        )


def show_plan(plan: PartitionPlan) -> None:
    """Every segment, what is in it, its boundary tensors, and why each fallback operator is one."""
    out = output()
    _show_tensors("Inputs", plan.inputs, out)
    _show_profiles(plan.profiles, out)
    table = make_table("Segments", "segment", "kind", "operators", "boundary in", "boundary out")
    for segment in plan.segments:
        counts = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in segment.operators.items())
        table.add_row(
            segment.name,
            segment.kind,
            escape(counts),
            escape("\n".join(map(str, segment.inputs))),
            escape("\n".join(map(str, segment.outputs))),
        )
    out.print(table)
    _show_tensors("Outputs", [o.tensor for o in plan.outputs], out)
    _show_fallbacks(plan, out)
    engines = sum(s.kind == "engine" for s in plan.segments)
    out.print(
        f"{engines} engine segments hold {plan.coverage:.0%} of the operators, {plan.parameter_coverage:.0%} of the weights",
        markup=False,
    )


def _show_tensors(title: str, tensors: Sequence[TensorSpec], out: Console) -> None:
    table = make_table(title, "name", "dtype", "dimensions (min:opt:max)")
    for tensor in tensors:
        table.add_row(escape(tensor.name), tensor.dtype, escape(", ".join(map(str, tensor.dims)) or "scalar"))
    out.print(table)


def _show_profiles(profiles: Sequence[Sequence[TensorSpec]], out: Console) -> None:
    if len(profiles) < 2:
        return
    table = make_table("Optimization profiles", "profile", "inputs")
    for index, inputs in enumerate(profiles):
        table.add_row(str(index), escape("\n".join(map(str, inputs))))
    out.print(table)


def _show_fallbacks(plan: PartitionPlan, out: Console) -> None:
    if not plan.fallbacks:
        return
    table = make_table("Run by PyTorch", "operator", "reason", "where")
    for item in plan.fallbacks:
        table.add_row(item.operator, escape(item.reason), escape(_relative(item.place or "")))
    out.print(table)


def _relative(place: str) -> str:
    """Shorter for a file below the working directory."""
    return place.removeprefix(f"{Path.cwd()}/")


def show_manifest(manifest: Manifest, path: object) -> None:
    """What one publication is: tensors, segments, how well it was verified, what built it."""
    out = output()
    out.print(f"{manifest.name}: {path}", markup=False)
    _show_tensors("Inputs", manifest.inputs, out)
    _show_profiles(manifest.profiles, out)
    _show_tensors("Outputs", [o.tensor for o in manifest.outputs], out)
    table = make_table("Segments", "segment", "kind", "compiler", "artifact", "size", "key")
    for segment in manifest.segments:
        directory = segment.artifact.rpartition("/")[0] + "/"
        size = sum(f.size for name, f in manifest.files.items() if name.startswith(directory))
        table.add_row(segment.name, segment.kind, segment.compiler, segment.artifact, size_text(size), segment.key[:12])
    out.print(table)
    verification = manifest.verification
    if verification.get("verified"):
        worst = max((o["relative"] for o in verification["outputs"]), default=0.0)
        out.print(f"verified at {verification['points']} points, worst relative error {worst:.1e}", markup=False)
    else:
        out.print(f"[yellow]not verified:[/] {escape(str(verification.get('reason', '')))}")
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    out.print(f"built {manifest.built_at} from {manifest.source} with {versions}", markup=False)


def show_checks(checks: Sequence[Mapping[str, str]]) -> None:
    """What doctor found, a line each."""
    table = make_table("", "what", "state", "detail")
    colours = {"ok": "green", "missing": "yellow", "limited": "yellow", "broken": "red"}
    for check in checks:
        colour = colours.get(check["state"], "white")
        table.add_row(check["what"], f"[{colour}]{check['state']}[/]", escape(check["detail"]))
    output().print(table)
