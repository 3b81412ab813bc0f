"""The engine cache as a person sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from builder.console import make_table, output, size_text

if TYPE_CHECKING:
    from builder.key_diff import PairDifference

__all__ = ["show_differences", "show_engine", "show_listing"]


def show_listing(engines: Sequence[Mapping[str, Any]], directory: Path) -> None:
    """One line per engine, and what they take together."""
    out = output()
    if engines:
        table = make_table("", "key", "compiler", "target", "weights", "size", "compiled in", "last used (UTC)", "")
        for e in engines:
            table.add_row(
                e["key"][:12],
                e["compiler"],
                target_text(e["target"]),
                "refitted" if e["refit"] == "weights" else "inside",
                size_text(e["size"]),
                f"{e['build_seconds']:.1f} s",
                e["last_used"][:16].replace("T", " "),
                "pinned" if e["pinned"] else "",
            )
        out.print(table)
    total = size_text(sum(e["size"] for e in engines))
    out.print(f"{directory}: engines {len(engines)}, {total}", markup=False)


def target_text(target: Mapping[str, Any]) -> str:
    """The target in a few words."""
    return ", ".join(str(value) for name, value in target.items() if name in ("device", "compute_capability", "cpu"))


def show_engine(engine: Mapping[str, Any]) -> None:
    """Everything that is known of an engine."""
    out = output()
    components = engine["components"]
    pinned = ", pinned" if engine["pinned"] else ""
    lines = [
        f"engine {engine['key']}",
        f"  compiler    {components['compiler']}, compiled in {engine['build_seconds']:.1f} s by {engine['builder']} "
        f"at {engine['created']}",
        f"  last used   {engine['last_used']}{pinned}",
        f"  size        {size_text(engine['size'])} in {engine['path']}",
        f"  weights     {'put in by refit' if engine['refit'] == 'weights' else 'part of the engine'}",
        *(f"  target      {name} {value}" for name, value in components["target"].items()),
        *(f"  in key      {name} {value}" for name, value in components["program"].items()),
        *(f"  input       {i['dtype']} min {i['min']} opt {i['opt']} max {i['max']}" for i in components["inputs"]),
        *(f"  output      {o['dtype']} rank {o['rank']}" for o in components["outputs"]),
        *(f"  by value    {f['origin']} {f['dtype']}{f['shape']}: {f['reason']}" for f in engine["fixed"]),
        *(f"  version     {name} {value}" for name, value in engine["versions"].items()),
        *(f"  setting     {name} = {json.dumps(value)}" for name, value in engine["settings"].items()),
        *(f"  file        {name} {size_text(f['size'])} blake3 {f['blake3']}" for name, f in engine["files"].items()),
        *(
            f"  used by     {u.get('model')} {u.get('segment')} of {u.get('source')}, {u.get('user')}, {u.get('last_used')}"
            for u in engine["users"]
        ),
        "  graph",
        *(f"    {line}" for line in engine["graph"].splitlines()),
    ]
    for line in lines:
        out.print(line, markup=False)


def show_differences(pairs: Sequence[PairDifference]) -> None:
    """What differs between the engines of two models."""
    out = output()
    shared = sum(p.shared for p in pairs)
    for pair in pairs:
        one = f"{pair.one[0]} ({pair.one[1][:12]})" if pair.one else "nothing"
        other = f"{pair.other[0]} ({pair.other[1][:12]})" if pair.other else "nothing"
        if pair.shared:
            out.print(f"{one} and {other}: one engine", markup=False)
            continue
        out.print(f"[yellow]{escape(one)} and {escape(other)}: two engines[/]")
        if pair.one is None or pair.other is None:
            out.print("  there is nothing to compare it with", markup=False)
        for name, a, b in pair.components:
            out.print(f"  {name}: {_value(a)} | {_value(b)}", markup=False)
        for line in pair.graph:
            out.print(f"    {line}", markup=False)
    out.print(f"engines shared: {shared} of {len(pairs)}", markup=False)


def _value(value: Any) -> str:
    return "none" if value is None else json.dumps(value)
