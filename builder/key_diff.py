"""Why two models do not share engines: which components of their keys differ, and how."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.cache.key import EngineKey, differences, engine_key
from builder.cache.maintenance import find_key, show
from builder.cache.store import LocalStore
from builder.compilation import work_directory
from builder.compilers.base import BuildContext
from builder.compilers.registry import choose_compiler
from builder.engines import engine_components
from builder.partition.partitioner import partition
from builder.pipeline import load_exported
from builder.progress import Progress
from builder.spec import BuildSpec

__all__ = ["EngineSummary", "PairDifference", "compare_engines", "engines_of", "stored_engine"]

# Lines of a graph's difference that are kept.
_LINES = 60


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """An engine as a model would ask for it, or as the cache has it.

    Args:
        name: "segment_0", or the beginning of the key.
        key, components: of the engine.
        graph: its graph in text.
        details: what is in the key by digest only.
        unsure: why it is never shared; empty when it is.
    """

    name: str
    key: EngineKey
    components: Mapping[str, Any]
    graph: str
    details: Mapping[str, Any]
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairDifference:
    """Two engines beside each other; one may be missing.

    Args:
        one, other: names and keys.
        shared: whether one engine serves both.
        components: (component, its value in one, its value in other) for each that differs.
        graph: the difference of their graphs, as unified diff lines.
    """

    one: tuple[str, EngineKey] | None
    other: tuple[str, EngineKey] | None
    shared: bool
    components: tuple[tuple[str, Any, Any], ...] = ()
    graph: tuple[str, ...] = field(default=(), repr=False)


def engines_of(spec: BuildSpec, progress: Progress) -> list[EngineSummary]:
    """The engines that a model would ask for. Compiles nothing.

    Raises:
        BuilderError: as a build does up to the compile stage.
    """
    compiler = choose_compiler(spec.settings.compiler, spec.settings.device)
    exported = load_exported(spec, progress)
    progress.stage("partition")
    found = []
    with work_directory() as work:
        session = compiler.session(BuildContext(work, spec.settings))
        for segment in partition(exported, session, spec.settings).segments:
            if segment.kind == "engine":
                fingerprint = session.fingerprint(segment)
                components = engine_components(compiler, spec.settings, fingerprint, segment)
                found.append(
                    EngineSummary(
                        segment.name,
                        engine_key(components),
                        components,
                        fingerprint.text,
                        fingerprint.details,
                        fingerprint.unsure,
                    )
                )
    return found


def stored_engine(store: LocalStore, text: str) -> EngineSummary | None:
    """The engine in the cache whose key begins with a text; None if the text is no key.

    Raises:
        CacheError: when there is none, or several.
    """
    if not re.fullmatch(r"[0-9a-f]{8,64}", text) or Path(text).exists():
        return None
    key = find_key(store, text)
    known = show(store, key)
    return EngineSummary(key[:12], key, known["components"], known["graph"], known["details"])


def compare_engines(ones: Sequence[EngineSummary], others: Sequence[EngineSummary]) -> list[PairDifference]:
    """Pair engines, those that are shared first, the rest in order."""
    left, right = list(ones), list(others)
    pairs: list[PairDifference] = []
    for one in ones:
        match = next((o for o in right if o.key == one.key and not one.unsure), None)
        if match is not None:
            left.remove(one)
            right.remove(match)
            pairs.append(PairDifference(_id(one), _id(match), True))
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else None
        b = right[index] if index < len(right) else None
        if a is None or b is None:
            pairs.append(PairDifference(_id(a) if a else None, _id(b) if b else None, False))
        else:
            pairs.append(_difference(a, b))
    return pairs


def _difference(one: EngineSummary, other: EngineSummary) -> PairDifference:
    components = [*differences(one.components, other.components), *differences(one.details, other.details, "details")]
    components += [("not shared", reason, reason) for reason in one.unsure]
    graph = difflib.unified_diff(
        one.graph.splitlines(), other.graph.splitlines(), one.name, other.name, lineterm="", n=0
    )
    return PairDifference(_id(one), _id(other), False, tuple(components), tuple(graph)[:_LINES])


def _id(engine: EngineSummary) -> tuple[str, EngineKey]:
    return engine.name, engine.key
