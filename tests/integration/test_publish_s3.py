"""Publishing over a real object store protocol: S3, spoken by moto's server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import RepositoryError
from builder.model_config import parse_config
from builder.repository.remote_target import publish_remote
from tests.integration.test_remote_s3 import s3  # noqa: F401
from tests.unit.publishing import make_ensemble, make_plan


def contents(endpoint: str) -> dict[str, bytes]:
    import boto3

    client: Any = boto3.client("s3", endpoint_url=endpoint)
    found = client.list_objects_v2(Bucket="engines").get("Contents", [])
    return {o["Key"]: client.get_object(Bucket="engines", Key=o["Key"])["Body"].read() for o in found}


def test_versions_members_and_pruning(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    url = f"s3://{s3}/engines/repo"
    large = bytes(range(256)) * (24 << 12)  # 24 MiB: more than one part
    assert publish_remote(make_plan(tmp_path, large), url).version == 1
    assert not publish_remote(make_plan(tmp_path, large), url).created
    assert publish_remote(make_plan(tmp_path, b"small"), url, keep=1).version == 2
    found = contents(s3)
    assert found["repo/encoder/2/segments/segment_0.onnx"] == b"small"
    assert not any(key.startswith("repo/encoder/1/") for key in found)
    policy = parse_config(found["repo/encoder/config.pbtxt"].decode()).version_policy
    assert list(policy.specific.versions) == [2]
    for last in (b"b", b"c"):
        publish_remote(make_ensemble(tmp_path, b"a", last), url, keep=1)
    names = {key.split("/")[1] for key in contents(s3)}
    assert len(names) == 2 + 2
    with pytest.raises(RepositoryError, match="other inputs or outputs"):
        publish_remote(make_plan(tmp_path, width=5), url)


def test_no_bucket_and_no_server(s3: str, tmp_path: Path) -> None:  # noqa: F811
    for url in ("s3://nothing-there/repo", "s3://http://127.0.0.1:9/engines/repo"):
        with pytest.raises(RepositoryError, match="cannot be changed") as caught:
            publish_remote(make_plan(tmp_path), url)
        assert caught.value.where == url
