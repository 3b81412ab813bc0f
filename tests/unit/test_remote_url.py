"""URLs of places: as fsspec takes them, and as Triton writes them."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest

from builder.errors import RepositoryError
from builder.remote_url import open_place


@pytest.mark.parametrize(
    ("url", "plain", "options"),
    [
        ("s3://https://host:9000/bucket/p", "s3://bucket/p", {"client_kwargs": {"endpoint_url": "https://host:9000"}}),
        ("s3://host:9000/bucket/p", "s3://bucket/p", {"client_kwargs": {"endpoint_url": "http://host:9000"}}),
        ("s3://bucket/p", "s3://bucket/p", {}),
        ("as://account/container/p", "abfs://container/p", {"account_name": "account", "account_key": "secret"}),
        ("as://account.blob.core.windows.net/c/p", "abfs://c/p", {"account_name": "account", "account_key": "secret"}),
        ("gs://bucket/p", "gs://bucket/p", {}),
    ],
)
def test_urls_as_triton_writes_them(monkeypatch, url, plain, options):
    asked = []

    def url_to_fs(text: str, **named: Any) -> tuple[object, str]:
        asked.append((text, named))
        return object(), "root/"

    monkeypatch.setenv("AZURE_STORAGE_KEY", "secret")
    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    assert open_place(url, RepositoryError, "--repo").root == "root"
    ((text, named),) = asked
    assert text == plain and named.items() >= options.items()


@pytest.mark.parametrize(("url", "extra"), [("s3://b", "s3"), ("gs://b", "gcs"), ("as://account/c", "azure")])
def test_a_missing_package_is_named_by_its_extra(monkeypatch, url, extra):
    def missing(text: str, **named: Any) -> None:
        raise ImportError("no such package")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(RepositoryError, match="not installed") as caught:
        open_place(url, RepositoryError, "--repo")
    assert caught.value.fix == f"pip install 'triton-repo-builder[{extra}]'"
