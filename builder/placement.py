"""Where a split model will live: its layout and whether requests are joined. Decided before anything is compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from builder.compilers.registry import available_compilers
from builder.errors import SpecError
from builder.export import ExportedModel
from builder.partition.plan import PartitionPlan, Segment
from builder.preprocess import Preprocessing, prepare
from builder.releases import Release, mismatches, release
from builder.repository.backends import NATIVE, can_batch
from builder.repository.batching import Batching, batch_symbol, choose_batching, unbatched_boundary
from builder.repository.layout import LayoutChoice, Step, choose_layout
from builder.spec import BuildSpec
from builder.types import SymbolName
from builder.verify.rows import check_padding, dependent_rows

__all__ = ["Placement", "Placer"]

# What of the build must be what the release has, for each backend of its own.
_MUST_MATCH = {"tensorrt": "tensorrt", "onnxruntime": "onnxruntime", "inductor": "torch"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Layout, batching and release of a split model; `segments` are those of the plan, with the names that their engines need.

    Args:
        warnings: where what builds the model is not what will serve it.
        needs: what the server must be started with.
    """

    layout: LayoutChoice
    batching: Batching
    release: Release | None
    segments: tuple[Segment, ...]
    warnings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None


class Placer:
    """Places each plan of one build.

    Args:
        spec: of the build.
        model: that is built.
        compiler: the name of the engine compiler.
        versions: of the packages that build.
    Raises:
        SpecError: when there is no such release.
    """

    def __init__(self, spec: BuildSpec, model: ExportedModel, compiler: str, versions: dict[str, str]) -> None:
        self._spec = spec
        self._model = model
        self._compiler = compiler
        self._versions = versions
        self._rows: tuple[SymbolName, str] | None = None
        self.release = release(spec.repository.triton) if spec.repository.triton else None

    def place(self, plan: PartitionPlan) -> Placement:
        """Choose for a plan.

        Raises:
            RepositoryError: when the layout that is asked for cannot be.
            SpecError: when an option asks for what cannot be.
            VerificationError: when padding changes answers.
        """
        batching = self._batching(plan)
        steps = [
            Step(s.name, self._compiler if s.kind == "engine" else "torch", s.inputs, s.outputs) for s in plan.segments
        ]
        layout = choose_layout(
            self._spec.repository,
            self._spec.triton,
            self.release,
            steps,
            plan.inputs,
            plan.outputs,
            plan.profiles,
            self._uncompilable(),
            preprocessed=self._spec.preprocess is not None,
        )
        preprocessing = self._prepared(plan)
        if preprocessing is not None and batching.batched:
            for name, _, dims in preprocessing.spec.inputs:
                if dims[:1] != (-1,):
                    batching = Batching(0, f"the input {name!r} of [preprocess] does not begin with the batch")
        if layout.layout == "ensemble" and batching.batched:
            batching = self._between_steps(plan, batching)
        if layout.layout == "plan" and batching.batched and not can_batch(NATIVE[layout.runners[0]], self.release):
            named = self.release.name if self.release else "any release"
            batching = Batching(0, f"the {NATIVE[layout.runners[0]].label} backend of Triton {named} mixes up batches")
        return Placement(
            layout,
            batching,
            self.release,
            self._named(plan, layout),
            tuple(self._mismatches(layout)),
            tuple(self._needs(layout)),
            preprocessing,
        )

    def _between_steps(self, plan: PartitionPlan, batching: Batching) -> Batching:
        tensors = [t for s in plan.segments for t in (*s.inputs, *s.outputs)]
        symbol = plan.inputs[0].dims[0].name or ""
        reason = unbatched_boundary(tensors, symbol)
        if not reason:
            return batching
        return choose_batching(0, "", reason, self._wanted())

    def _wanted(self) -> int | None:
        options = self._spec.triton
        return int(options.message().max_batch_size) if "max_batch_size" in options.fields else None

    def _prepared(self, plan: PartitionPlan) -> Preprocessing | None:
        if self._spec.preprocess is None:
            return None
        return prepare(self._spec.preprocess, self._spec.base, plan.inputs)

    def _batching(self, plan: PartitionPlan) -> Batching:
        wanted = self._wanted()
        if self._rows is None and wanted != 0:
            self._rows = self._independent_rows(plan)
        symbol, reason = self._rows or ("", "")
        limit = next((d.max or 0 for t in plan.inputs for d in t.dims if d.name == symbol), 0) if symbol else 0
        batching = choose_batching(limit, symbol, reason, wanted)
        if self._spec.triton.ragged:
            self._check_ragged(plan, batching)
        return batching

    def _independent_rows(self, plan: PartitionPlan) -> tuple[SymbolName, str]:
        profiles = plan.profiles if len(plan.profiles) > 1 else ()
        symbol, reason = batch_symbol(plan.inputs, [o.tensor for o in plan.outputs], profiles)
        if symbol:
            reason = dependent_rows(self._model.eager, symbol, self._spec.settings)
        return ("" if reason else symbol), reason

    def _check_ragged(self, plan: PartitionPlan, batching: Batching) -> None:
        if not batching.batched:
            raise SpecError(
                f"requests are not joined to batches: {batching.reason}",
                where="[triton].ragged",
                fix="leave ragged out",
            )
        check_padding(self._model.eager, plan.inputs, plan.outputs, self._spec.triton.ragged, self._spec.settings)

    def _uncompilable(self) -> str:
        """Why fallback segments cannot be compiled for the PyTorch backend; "" where they can."""
        inductor = available_compilers().get("inductor")
        state = inductor.availability() if inductor is not None else None
        if state is None or not state.can_build:
            return f"AOTInductor cannot compile here: {state.detail if state else 'it is not there'}"
        if self.release is not None:
            unlike = mismatches(self.release, {"torch": self._versions["torch"]})
            if unlike:
                return unlike[0]
        return ""

    def _named(self, plan: PartitionPlan, layout: LayoutChoice) -> tuple[Segment, ...]:
        """In the layout plan clients see the engine's own names."""
        if layout.layout != "plan" or NATIVE[layout.runners[0]].positional:
            return plan.segments
        (segment,) = plan.segments
        names = {o.value: o.tensor.name for o in plan.outputs}
        seen = tuple(t.name for t in segment.inputs), tuple(names.get(t.name, t.name) for t in segment.outputs)
        # Only an engine that cannot be renamed later is compiled for its names; ONNX graphs are written again.
        return (dataclasses.replace(segment, tensor_names=seen),) if layout.runners[0] == "tensorrt" else plan.segments

    def _mismatches(self, layout: LayoutChoice) -> Sequence[str]:
        if self.release is None:
            return ()
        watched = {_MUST_MATCH[r] for r in layout.runners if r in _MUST_MATCH}
        if "tensorrt" in watched and self._spec.settings.tensorrt.version_compatible:
            watched.discard("tensorrt")
        return mismatches(self.release, {k: v for k, v in self._versions.items() if k in watched})

    def _needs(self, layout: LayoutChoice) -> Sequence[str]:
        needs = []
        tensorrt = self._spec.settings.tensorrt
        if "inductor" in layout.runners:
            needs.append(
                "AOTI_RUNTIME_CHECK_INPUTS=1 in the server's environment, or sizes out of range are answered wrongly"
            )
        if "tensorrt" in layout.runners and tensorrt.version_compatible:
            needs.append("--backend-config=tensorrt,version-compatible=true")
        if "tensorrt" in layout.runners and tensorrt.plugins:
            needs.append(f"--backend-config=tensorrt,plugins={';'.join(tensorrt.plugins)}")
        if layout.layout == "python" or "python" in layout.runners:
            needs.append("--disable-auto-complete-config, or each Python model starts twice")
        return needs
