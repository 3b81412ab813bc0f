"""Rules: the version policy, and the version directories."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["FOLDER_RULES", "RULES"]

# Names that someone meant for a version.
_ODD_VERSION = re.compile(r"[vV]\d+|0\d+|\d+\.\d+")


@rule("version-policy-empty", "error")
def _empty_policy(model: Model) -> Iterator[Problem]:
    policy = model.config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions < 1:
        reason = f"the policy keeps the latest {policy.latest.num_versions} versions, so none"
    elif choice == "specific" and not policy.specific.versions:
        reason = "the policy is 'specific' and lists no version"
    else:
        return
    yield Problem(_none_available(model), reason, ("version_policy",))


@rule("version-policy-number", "warning")
def _policy_numbers(model: Model) -> Iterator[Problem]:
    for index, version in enumerate(model.config.version_policy.specific.versions):
        if version < 1:
            yield Problem(
                f"version policy of model {model.name} names version {version}, a version below 1",
                "number versions from 1",
                ("version_policy", "specific", "versions", index),
            )


@rule("version-absent", "warning")
def _absent(model: Model) -> Iterator[Problem]:
    if model.folder is None:
        return
    for index, version in enumerate(model.config.version_policy.specific.versions):
        if version >= 1 and version not in model.folder.versions:
            yield Problem(
                f"version {version} is specified for model '{model.name}', but the version directory is not present",
                "add the directory, or take the version out of the policy",
                ("version_policy", "specific", "versions", index),
            )


@rule("version-none", "error")
def _none(model: Model) -> Iterator[Problem]:
    if model.folder is None or model.served or any(_empty_policy.check(model)):
        return
    there = ", ".join(map(str, model.folder.versions))
    found = f"there are versions {there}, which the policy leaves out" if there else "there is no version directory"
    yield Problem(
        _none_available(model),
        f"{found}; add a directory such as {model.file('1')}, which an ensemble needs too",
        ("version_policy",) if there else (),
    )


@rule("version-name", "warning")
def _odd_name(model: Model) -> Iterator[Problem]:
    for name in model.folder.directories if model.folder is not None else ():
        if _ODD_VERSION.fullmatch(name):
            yield Problem(
                f"the server ignores the directory '{name}' of model '{model.name}': it is no version number",
                f"rename it to {int(re.sub(r'[^0-9]', '', name.partition('.')[0])) or 1}",
                file=model.file(name),
            )


@rule("version-zero", "warning")
def _zero(model: Model) -> Iterator[Problem]:
    if model.folder is not None and 0 in model.folder.versions:
        yield Problem(
            f"version 0 of model '{model.name}' is loaded by some releases and ignored by others",
            "number versions from 1",
            file=model.file("0"),
        )


@rule("ensemble-version-empty", "warning")
def _empty_ensemble(model: Model) -> Iterator[Problem]:
    if model.folder is None or not model.is_ensemble:
        return
    for version in model.served:
        if not model.folder.entries(str(version)):
            yield Problem(
                f"the version directory of the ensemble '{model.name}' is empty: git, object stores and archives drop it, "
                f"and then {_none_available(model)}",
                "put an empty file into it, for example .gitkeep",
                file=model.folder.version_path(version),
            )


def _none_available(model: Model) -> str:
    return f"at least one version must be available under the version policy of model '{model.name}'"


RULES = (_empty_policy, _policy_numbers, _absent, _none, _empty_ensemble)
FOLDER_RULES = (_odd_name, _zero)
