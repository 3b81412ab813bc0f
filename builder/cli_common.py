"""What all commands share: their options, and how an error becomes a few lines and an exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from builder.errors import BuilderError, VerificationError

__all__ = [
    "DEFAULT_ROOT",
    "Atol",
    "Bounds",
    "CacheDir",
    "CacheSize",
    "CompilerName",
    "Debug",
    "DeviceName",
    "ExecutedModules",
    "ExecutedOps",
    "FallbackName",
    "Fp32Modules",
    "Fp32Ops",
    "Full",
    "Graph",
    "Inputs",
    "Json",
    "Keep",
    "LayoutName",
    "MinBlock",
    "Model",
    "Name",
    "OutputNames",
    "PrecisionName",
    "Profiles",
    "ReleaseName",
    "Reload",
    "Remote",
    "RemoteReadonly",
    "Replace",
    "Root",
    "Rtol",
    "Target",
    "reported",
]

DEFAULT_ROOT = Path("model_repo")

Command = TypeVar("Command", bound=Callable[..., None])

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A spec in examples/, a spec file (model.toml), package.module:callable, file.py:callable, "
        "model.pt2, hf:ID_OR_DIR, torchvision:NAME or timm:NAME.",
        show_default=False,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="TEXT",
        help="An input, for example 'input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521'. Repeat for each.",
    ),
]
OutputNames = Annotated[list[str] | None, typer.Option("--output-name", help="A name for an output, in order.")]
Name = Annotated[str | None, typer.Option(help="The model's name in the repository.")]
Target = Annotated[
    str, typer.Option("--repo", help="The model repository; s3://, gs:// and as:// for one in an object store.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Let the new version have other inputs or outputs than the one before it.")
]
Keep = Annotated[int | None, typer.Option("--keep", help="Remove all but the newest so many versions.", min=1)]
Reload = Annotated[
    str | None,
    typer.Option(
        "--reload",
        metavar="URL",
        help="A server in explicit mode (HOST:PORT) that loads the new version and is called; back if that fails.",
    ),
]


def _directory(text: str | Path) -> Path:
    # A default comes as it is.
    if isinstance(text, str) and "://" in text:
        raise typer.BadParameter(f"{text} is no directory on this machine; only build takes a URL")
    return Path(text)


Root = Annotated[Path, typer.Option("--repo", help="The model repository.", parser=_directory, metavar="PATH")]
CacheDir = Annotated[
    Path | None, typer.Option("--cache", help="The engine cache; else TRITON_REPO_CACHE, else the platform's.")
]
CacheSize = Annotated[
    str | None, typer.Option("--cache-size", help="Evict engines above it, e.g. 50G; else TRITON_REPO_CACHE_SIZE.")
]
Remote = Annotated[
    str | None, typer.Option("--remote", help="A shared engine store, any fsspec URL; else TRITON_REPO_REMOTE.")
]
RemoteReadonly = Annotated[bool, typer.Option("--remote-readonly", help="Take engines from the remote, send none.")]
CompilerName = Annotated[str | None, typer.Option("--compiler", help="auto, onnxruntime, tensorrt_rtx, inductor, ...")]
DeviceName = Annotated[str | None, typer.Option("--device", help="What engines are for: auto (default), cpu or cuda.")]
MinBlock = Annotated[int | None, typer.Option(help="Leave engine segments with fewer operators to PyTorch.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="What engines compute in: fp32 (default), tf32, fp16 or bf16.")
]
Fp32Ops = Annotated[
    list[str] | None, typer.Option("--fp32-ops", help="An operator that stays in float32, e.g. aten::gelu.")
]
Fp32Modules = Annotated[
    list[str] | None, typer.Option("--fp32-modules", help="A module that stays in float32, e.g. head or LayerNorm.")
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="TEXT",
        help="An optimization profile, for example 'B=1, T=8:64:256'. Repeat for each.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="TEXT",
        help="The range of an output's size that depends on the data, for example 'boxes[0]=0:100:300'. Repeat for each.",
    ),
]
ExecutedOps = Annotated[
    list[str] | None, typer.Option("--torch-executed-ops", help="An operator that PyTorch runs, e.g. aten::gelu.")
]
ExecutedModules = Annotated[
    list[str] | None,
    typer.Option("--torch-executed-modules", help="A module that PyTorch runs, e.g. encoder.layers.0 or LayerNorm."),
]
Full = Annotated[
    bool, typer.Option("--require-full-compilation", help="Fail where an operator would fall back to PyTorch.")
]
Graph = Annotated[Path | None, typer.Option("--graph", help="Draw the segments into a .svg or .html file.")]
LayoutName = Annotated[
    str | None,
    typer.Option("--layout", help="How it sits in the repository: auto (default), plan, ensemble or python."),
]
ReleaseName = Annotated[
    str | None, typer.Option("--triton", help="The Triton release that will serve it, e.g. 26.09; any if not given.")
]
FallbackName = Annotated[
    str | None,
    typer.Option("--fallback", help="What runs an ensemble's fallback segments: auto (default), torch_aoti or python."),
]
Rtol = Annotated[float | None, typer.Option(help="Tolerance relative to an output's largest magnitude.")]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def reported(command: Command) -> Command:
    """Turn every error into a few lines and an exit code: 2 the user's mistake, 1 ours, 130 Ctrl-C."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            command(*args, **kwargs)
        except BuilderError as error:
            from builder.console import print_error

            if kwargs.get("debug"):
                raise
            print_error(error, kwargs.get("as_json", False))
            raise typer.Exit(1 if isinstance(error, VerificationError) else 2) from None
        except KeyboardInterrupt:
            print("interrupted; nothing was changed", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of our output has gone; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if kwargs.get("debug"):
                raise
            print(
                f"internal error: {type(error).__name__}: {error}\n  to do: run again with --debug and report what it shows",
                file=sys.stderr,
            )
            raise typer.Exit(1) from None

    return run  # type: ignore[return-value]


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
