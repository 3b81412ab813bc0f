"""Rules: the files that a configuration names, and those that every version must hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

_CAPABILITY = re.compile(r"\d+\.\d+")
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


@rule("artifact-missing", "error")
def _artifact(model: Model) -> Iterator[Problem]:
    if model.folder is None or not model.artifact or model.is_ensemble:
        return
    # A file for each kind of GPU may stand for the default one.
    if any(model.config.cc_model_filenames.values()):
        return
    for version in model.served:
        if not model.folder.exists(str(version), model.artifact):
            held = ", ".join(model.folder.entries(str(version))) or "nothing"
            yield Problem(
                f"unable to find '{model.file(str(version), model.artifact)}' for model '{model.name}'",
                f"put it there, or name the file in default_model_filename; the directory holds {held}",
                file=model.folder.version_path(version),
            )


@rule("capability-file-missing", "error")
def _capability_file(model: Model) -> Iterator[Problem]:
    if model.folder is None:
        return
    for key, name in sorted(model.config.cc_model_filenames.items()):
        for version in model.served:
            if name and not model.folder.exists(str(version), name):
                yield Problem(
                    f"unable to find '{model.file(str(version), name)}' for model '{model.name}', which is for GPUs of "
                    f"compute capability {key}",
                    "put it there, or remove the entry",
                    ("cc_model_filenames", key),
                )


@rule("capability-key", "warning")
def _capability_key(model: Model) -> Iterator[Problem]:
    for key in sorted(model.config.cc_model_filenames):
        if not _CAPABILITY.fullmatch(key):
            yield Problem(
                f"cc_model_filenames of {model.name} has the key '{key}', which is the compute capability of no GPU",
                'write it as major.minor, for example "9.0"',
                ("cc_model_filenames", key),
            )


@rule("label-file-missing", "error")
def _labels(model: Model) -> Iterator[Problem]:
    if model.folder is None:
        return
    for index, tensor in enumerate(model.config.output):
        name = tensor.label_filename
        if name and not model.folder.is_file(name):
            yield Problem(
                f"failed to open text file for read {model.file(name)}: No such file or directory",
                "put the labels there: their path is relative to the model's directory, not to a version's",
                ("output", index, "label_filename"),
            )


@rule("environment-missing", "error")
def _environment(model: Model) -> Iterator[Problem]:
    value = model.config.parameters[_ENVIRONMENT].string_value if _ENVIRONMENT in model.config.parameters else ""
    if model.folder is None or model.backend != "python" or not value.startswith(f"{_MODEL_DIRECTORY}/"):
        return
    below = value.removeprefix(f"{_MODEL_DIRECTORY}/")
    if ".." in below.split("/"):
        fault = f"EXECUTION_ENV_PATH of {model.name} leaves the model's directory: {value}"
    elif not model.folder.exists(below):
        fault = f"there is no '{model.file(below)}', which EXECUTION_ENV_PATH of {model.name} names"
    else:
        return
    yield Problem(fault, "put the packed or unpacked environment there", ("parameters", _ENVIRONMENT))


RULES = (_artifact, _capability_file, _capability_key, _labels, _environment)
