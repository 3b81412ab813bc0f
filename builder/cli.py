"""`triton-repo`: parse, call, print. No logic, and no torch before a command needs it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from builder.cli_cache import app as cache_app
from builder.cli_common import (
    DEFAULT_ROOT,
    Atol,
    Bounds,
    CacheDir,
    CacheSize,
    CompilerName,
    Debug,
    DeviceName,
    ExecutedModules,
    ExecutedOps,
    FallbackName,
    Fp32Modules,
    Fp32Ops,
    Full,
    Graph,
    Inputs,
    Json,
    Keep,
    LayoutName,
    MinBlock,
    Model,
    Name,
    OutputNames,
    PrecisionName,
    Profiles,
    ReleaseName,
    Reload,
    Remote,
    RemoteReadonly,
    Replace,
    Root,
    Rtol,
    Target,
    reported,
)
from builder.cli_lint import lint
from builder.cli_repository import ConfigOption, prune, rollback, verify

app = typer.Typer(
    name="triton-repo",
    help="Turn a PyTorch model into a complete Triton Inference Server model repository.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(cache_app, name="cache")


def _spec(
    model: str,
    *,
    name: str | None = None,
    inputs: list[str] | None = None,
    profiles: list[str] | None = None,
    bounds: list[str] | None = None,
    output_names: list[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    repository: dict[str, str | None] | None = None,
    **settings: Any,
) -> Any:
    """The spec of MODEL with whatever was given on the command line over it."""
    from builder.spec import find_spec

    return find_spec(
        model,
        name=name,
        inputs=inputs or (),
        profiles=profiles or (),
        bounds=bounds or (),
        output_names=output_names,
        overrides={k: v for k, v in settings.items() if v is not None and v is not False and v != []},
        verify={k: v for k, v in (("rtol", rtol), ("atol", atol)) if v is not None},
        repository={k: v for k, v in (repository or {}).items() if v is not None},
    )


@app.command(short_help="Build a model and publish it.")
@reported
def build(
    model: Model,
    input_: Inputs = None,
    profile: Profiles = None,
    name: Name = None,
    output_name: OutputNames = None,
    bound: Bounds = None,
    repo: Target = str(DEFAULT_ROOT),
    replace: Replace = False,
    keep: Keep = None,
    config: ConfigOption = "merge",
    reload: Reload = None,
    layout: LayoutName = None,
    triton: ReleaseName = None,
    fallback: FallbackName = None,
    cache: CacheDir = None,
    cache_size: CacheSize = None,
    remote: Remote = None,
    remote_readonly: RemoteReadonly = False,
    compiler: CompilerName = None,
    device: DeviceName = None,
    min_block_size: MinBlock = None,
    torch_executed_ops: ExecutedOps = None,
    torch_executed_modules: ExecutedModules = None,
    require_full_compilation: Full = False,
    precision: PrecisionName = None,
    fp32_ops: Fp32Ops = None,
    fp32_modules: Fp32Modules = None,
    rtol: Rtol = None,
    atol: Atol = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Export, partition, compile, verify against eager PyTorch, and publish."""
    spec = _spec(
        model,
        name=name,
        inputs=input_,
        profiles=profile,
        bounds=bound,
        output_names=output_name,
        rtol=rtol,
        atol=atol,
        repository={"layout": layout, "triton": triton, "fallback": fallback},
        compiler=compiler,
        device=device,
        min_block_size=min_block_size,
        torch_executed_ops=torch_executed_ops,
        torch_executed_modules=torch_executed_modules,
        require_full_compilation=require_full_compilation,
        precision=precision,
        fp32_ops=fp32_ops,
        fp32_modules=fp32_modules,
    )
    from builder.cache.options import CacheOptions
    from builder.console import Reporter, print_json, show_build

    with Reporter(quiet=as_json) as reporter:
        options = CacheOptions.resolve(cache, limit=cache_size, remote=remote, readonly=remote_readonly or None)
        reporter.stage("import torch")
        from builder.pipeline import build as run
        from builder.publishing import PublishOptions
        from builder.report import build_json

        result = run(
            spec,
            root=repo,
            cache=options,
            progress=reporter,
            command=shlex.join(["triton-repo", *sys.argv[1:]]),
            publishing=PublishOptions(replace, keep, config, reload),
        )
    if as_json:
        print_json(build_json(result))
    else:
        show_build(result)


@app.command(short_help="Dry run: show how it would be split.")
@reported
def plan(
    model: Model,
    input_: Inputs = None,
    profile: Profiles = None,
    output_name: OutputNames = None,
    bound: Bounds = None,
    compiler: CompilerName = None,
    device: DeviceName = None,
    min_block_size: MinBlock = None,
    torch_executed_ops: ExecutedOps = None,
    torch_executed_modules: ExecutedModules = None,
    require_full_compilation: Full = False,
    precision: PrecisionName = None,
    fp32_ops: Fp32Ops = None,
    fp32_modules: Fp32Modules = None,
    graph: Graph = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Dry run: show the segments, their boundary tensors, and why an operator falls back. Compiles nothing."""
    spec = _spec(
        model,
        inputs=input_,
        profiles=profile,
        bounds=bound,
        output_names=output_name,
        compiler=compiler,
        device=device,
        min_block_size=min_block_size,
        torch_executed_ops=torch_executed_ops,
        torch_executed_modules=torch_executed_modules,
        require_full_compilation=require_full_compilation,
        precision=precision,
        fp32_ops=fp32_ops,
        fp32_modules=fp32_modules,
    )
    from builder.console import Reporter, print_json, show_plan

    with Reporter(quiet=as_json) as reporter:
        reporter.stage("import torch")
        from builder.drawing import check_drawing, write_drawing

        if graph is not None:
            check_drawing(graph)
        from builder.pipeline import plan as run
        from builder.report import plan_json

        result = run(spec, reporter)
    if graph is not None:
        write_drawing(result, graph, spec.name)
    if as_json:
        print_json(plan_json(result))
    else:
        show_plan(result)


@app.command(short_help="Show what a publication is.")
@reported
def inspect(
    path: Annotated[Path, typer.Argument(help="A version directory, a model's directory, or a repository.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a publication is: tensors, segments, errors measured, versions that built it."""
    from builder.console import print_json, show_manifest
    from builder.repository.find import find_publications

    found = find_publications(path)
    if as_json:
        import dataclasses

        print_json([{"path": str(p), **dataclasses.asdict(m)} for p, m in found])
        return
    for place, manifest in found:
        show_manifest(manifest, place)


@app.command(short_help="Serve a repository with Triton.")
@reported
def serve(
    repo: Root = DEFAULT_ROOT,
    http_port: Annotated[int | None, typer.Option(help="A free one if not given.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="A free one if not given.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="A free one if not given.")] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than this machine's need 0.0.0.0.")
    ] = "127.0.0.1",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve a repository until Ctrl-C, with an installed tritonserver or the one inside nvidia-pytriton."""
    from builder.console import print_json
    from builder.serving.server import TritonServer

    server = TritonServer(
        repo, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port, host=host, log_to_stderr=not as_json
    )
    with server:
        where = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
        if as_json:
            print_json(where)
            sys.stdout.flush()
        else:
            print("ready: " + ", ".join(f"{k} {v}" for k, v in where.items()) + " (Ctrl-C stops it)", flush=True)
        try:
            server.wait()
        except KeyboardInterrupt:
            print("stopping", file=sys.stderr)


@app.command(short_help="Call a served model and compare.")
@reported
def smoke(
    model: Model,
    input_: Inputs = None,
    name: Name = None,
    repo: Root = DEFAULT_ROOT,
    http_url: Annotated[str | None, typer.Option(help="HOST:PORT of a running server.")] = None,
    grpc_url: Annotated[str | None, typer.Option(help="HOST:PORT of a running server.")] = None,
    rtol: Rtol = None,
    atol: Atol = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Call a served model over HTTP and gRPC over its whole range, and compare with eager PyTorch.

    Without a URL it calls the server on ports 8000 and 8001 if that has the model, else it starts one.
    """
    spec = _spec(model, name=name, inputs=input_, rtol=rtol, atol=atol)
    from builder.console import Reporter, print_json

    urls = {p: u for p, u in (("http", http_url), ("grpc", grpc_url)) if u}
    with Reporter(quiet=as_json) as reporter:
        reporter.stage("import torch")
        from builder.verify.smoke import smoke as run

        result = run(spec, repo, reporter, urls=urls)
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(result))
        return
    for protocol, report in result.reports.items():
        worst = report.worst
        said = f"worst relative error {worst.relative:.1e} (output {worst.output}, {worst.point})" if worst else ""
        print(f"{protocol}: {report.points} requests to {spec.name} version {result.version}, {said}")


@app.command(short_help="Show what is installed and missing.")
@reported
def doctor(triton: ReleaseName = None, as_json: Json = False, debug: Debug = False) -> None:
    """Say what is installed, which compilers can build and run here, and how to get what is missing.

    With --triton, also what of it is not what that release has.
    """
    from builder.console import print_json, show_checks
    from builder.doctor import examine
    from builder.releases import release

    checks = examine(release(triton) if triton else None)
    if as_json:
        print_json(checks)
    else:
        show_checks(checks)


app.command("rollback", short_help="Publish an older version again.")(rollback)
app.command("prune", short_help="Remove older versions.")(prune)
app.command("verify", short_help="Check files against their digests.")(verify)
app.command("lint", short_help="Check a repository by the server's rules.")(lint)


def main() -> None:
    """Entry point of the command `triton-repo`."""
    app()
