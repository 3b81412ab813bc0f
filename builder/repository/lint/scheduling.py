"""Rules: dynamic batching, the response cache and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateModelConfig` in triton-inference-server/core, model_config_utils.cc.


@rule("batching-without-effect", "warning")
def _no_effect(model: Model) -> Iterator[Problem]:
    if model.config.HasField("dynamic_batching") and model.config.max_batch_size == 0:
        yield Problem(
            f"dynamic_batching has no effect on {model.name}, whose max_batch_size is 0",
            "remove it, or give a max_batch_size and take the batch dimension out of every dims",
            ("dynamic_batching",),
        )


@rule("preferred-size", "error")
def _preferred(model: Model) -> Iterator[Problem]:
    for index, size in enumerate(model.config.dynamic_batching.preferred_batch_size):
        place = ("dynamic_batching", "preferred_batch_size", index)
        if size <= 0:
            yield Problem(f"dynamic batching preferred size must be positive for {model.name}", f"it is {size}", place)
        elif size > model.config.max_batch_size:
            yield Problem(
                f"dynamic batching preferred size must be <= max batch size for {model.name}",
                f"it is {size}, and max_batch_size is {model.config.max_batch_size}",
                place,
            )


@rule("priority-level", "error")
def _priority(model: Model) -> Iterator[Problem]:
    batching = model.config.dynamic_batching
    levels = batching.priority_levels
    if not levels:
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield Problem(
            f"default priority level must be in range [1, {levels}] for {model.name}",
            f"default_priority_level is {batching.default_priority_level}",
            ("dynamic_batching", "default_priority_level"),
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            yield Problem(
                f"priority queue policy must have priority level in range [1, {levels}] for {model.name}",
                f"one is for level {level}",
                ("dynamic_batching", "priority_queue_policy", level),
            )


@rule("priority-without-levels", "warning")
def _unused_priority(model: Model) -> Iterator[Problem]:
    batching = model.config.dynamic_batching
    if batching.priority_levels:
        return
    for field in ("default_priority_level", "priority_queue_policy"):
        if getattr(batching, field):
            yield Problem(
                f"{field} of {model.name} has no effect without priority_levels",
                "give priority_levels, or remove it",
                ("dynamic_batching", field),
            )


@rule("preserve-ordering", "error")
def _ordering(model: Model) -> Iterator[Problem]:
    batching = model.config.dynamic_batching
    if not batching.preserve_ordering:
        return
    if batching.priority_levels > 1:
        yield Problem(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model.name}",
            "remove preserve_ordering or the levels",
            ("dynamic_batching", "preserve_ordering"),
        )
    policies = [("default_queue_policy", batching.default_queue_policy)]
    policies += [("priority_queue_policy", policy) for policy in batching.priority_queue_policy.values()]
    for field, policy in policies:
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            yield Problem(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model.name}",
                "make the action REJECT, or remove preserve_ordering",
                ("dynamic_batching", field),
            )


@rule("cache-sequence", "error")
def _cache_sequence(model: Model) -> Iterator[Problem]:
    if model.config.response_cache.enable and model.config.HasField("sequence_batching"):
        yield Problem(
            f"Response Cache does not currently support model {model.name} with sequence batching scheduler. Please "
            "disable the response cache.",
            "remove response_cache",
            ("response_cache",),
        )


@rule("cache-decoupled", "error")
def _cache_decoupled(model: Model) -> Iterator[Problem]:
    if model.config.response_cache.enable and model.config.model_transaction_policy.decoupled:
        yield Problem(
            f"Response Cache does not currently support model {model.name} with 'decoupled' transaction policy. Please "
            "disable the response cache.",
            "remove response_cache",
            ("response_cache",),
        )


@rule("metric-control", "error")
def _metrics(model: Model) -> Iterator[Problem]:
    for index, control in enumerate(model.config.model_metrics.metric_control):
        fault = _metric_fault(control)
        if fault:
            place = ("model_metrics", "metric_control", index)
            yield Problem(fault, "name a histogram's family and give its buckets", place)


def _metric_fault(control: Any) -> str | None:
    if not control.HasField("metric_identifier"):
        return "metric control must specify 'metric_identifier'"
    if not control.metric_identifier.family:
        return "metric identifier must specify non-empty 'family'"
    if not control.HasField("histogram_options"):
        return "metric control must specify 'histogram_options'"
    return None if control.histogram_options.buckets else "histogram options must specify non-empty 'buckets'"


RULES = (
    _no_effect,
    _preferred,
    _priority,
    _unused_priority,
    _ordering,
    _cache_sequence,
    _cache_decoupled,
    _metrics,
)
