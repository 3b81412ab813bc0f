"""The remote store over a real object store protocol: S3, spoken by moto's server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cache.engine_cache import EngineCache
from builder.cache.maintenance import pull, push
from builder.cache.options import CacheOptions
from builder.cache.remote import RemoteStore
from builder.cache.store import LocalStore
from tests.unit.engines import Build, request, stored

URL = "s3://engines/team"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of its own, on a server of its own."""
    import boto3
    from moto.server import ThreadedMotoServer

    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    try:
        # What other servers of this process have held is held by all.
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="engines")
        yield endpoint
    finally:
        server.stop()


def machine(tmp_path: Path, name: str, warnings: list[str]) -> EngineCache:
    work = tmp_path / f"work-{name}"
    work.mkdir(exist_ok=True)
    return EngineCache(CacheOptions(tmp_path / name, remote=URL), work, warnings.append)


def test_one_machine_compiles_for_all(s3: str, tmp_path: Path) -> None:
    warnings: list[str] = []
    build = Build(bytes(range(256)) * (20 << 12))  # 20 MiB: more than one part
    for name in ("one", "two"):
        cache = machine(tmp_path, name, warnings)
        entry = cache.get_or_build(request(), build)
        cache.close()
        assert (entry.files / "engine.bin").read_bytes() == build.content
    assert warnings == [] and build.count == 1
    (key,) = RemoteStore(URL).stored_keys()
    assert key == request().key


def test_damage_in_the_bucket_is_repaired(s3: str, tmp_path: Path) -> None:
    import boto3

    warnings: list[str] = []
    first = machine(tmp_path, "one", warnings)
    first.get_or_build(request(), Build())
    first.close()
    client = boto3.client("s3", endpoint_url=s3)
    for item in client.list_objects_v2(Bucket="engines", Prefix="team/objects/")["Contents"]:
        client.put_object(Bucket="engines", Key=item["Key"], Body=b"x" * item["Size"])
    second = machine(tmp_path, "two", warnings)
    assert not second.get_or_build(request(), Build()).hit
    second.close()
    assert len(warnings) == 1 and "is not taken" in warnings[0]
    assert machine(tmp_path, "three", warnings).get_or_build(request(), Build()).hit


def test_push_and_pull(s3: str, tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        store.prepare()
    for name in "abcdefghij":
        stores[0].put(stored(tmp_path / name, name), tmp_path / name)
    options = CacheOptions(tmp_path / "one", remote=URL)
    assert len(push(stores[0], options, [])["sent"]) == 10
    result = pull(stores[1], options, [])
    assert (len(result["taken"]), result["failed"]) == (10, {})
    assert stores[1].stored_keys() == stores[0].stored_keys()


def test_no_bucket_and_no_server_are_warnings(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    options = CacheOptions(tmp_path / "one", remote="s3://nothing-there/engines")
    cache = EngineCache(options, tmp_path, warnings.append)
    assert not cache.get_or_build(request(), Build()).hit
    cache.close()
    assert len(warnings) == 1 and "s3://nothing-there/engines is not used any more" in warnings[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    cache = EngineCache(CacheOptions(tmp_path / "two", remote=URL), tmp_path, warnings.append)
    assert not cache.get_or_build(request(), Build()).hit
    cache.close()
    assert len(warnings) == 2 and URL in warnings[1]
