"""Reloading a model in a server, with the server's answers given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import RepositoryError, ServingError
from builder.repository.publish import publish
from builder.serving import reload as module
from builder.serving.client import ModelState
from builder.serving.reload import publish_live, reload
from tests.unit.publishing import make_plan, tree

FORBIDDEN = "the server did not load model m: explicit model load / unload is not allowed if polling is enabled"


class FakeClient:
    """Refuses to load with what `refusal` says; is ready when `ready` says so."""

    refusal: Callable[[str], str | None]
    ready: bool
    calls: list[tuple[str, ...]]

    def __init__(self, protocol: str, url: str, *, timeout: float) -> None:
        self.protocol, self.url = protocol, url
        self.calls.append(("connect", protocol, url))

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load_model(self, name: str) -> None:
        self.calls.append(("load", name))
        if said := type(self).refusal(name):
            raise ServingError(said, where="http")

    def unload_model(self, name: str) -> None:
        self.calls.append(("unload", name))

    def model_ready(self, name: str, version: str) -> bool:
        return self.ready

    def model_states(self) -> tuple[ModelState, ...]:
        return (ModelState("encoder", "1", "LOADING", ""), ModelState("encoder", "2", "UNAVAILABLE", "no memory"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    FakeClient.refusal, FakeClient.ready, FakeClient.calls = staticmethod(lambda name: None), True, []
    monkeypatch.setattr(module, "Client", FakeClient)
    return FakeClient


def refuse(server: Any, *texts: str | None) -> None:
    given = iter(texts)
    server.refusal = staticmethod(lambda name: next(given, None))


def test_a_server_that_is_not_in_explicit_mode(server):
    refuse(server, FORBIDDEN)
    with pytest.raises(ServingError, match="not in explicit mode") as caught:
        reload("encoder", "127.0.0.1:8000")
    assert "--model-control-mode=explicit" in caught.value.fix


@pytest.mark.parametrize(
    ("url", "protocol", "address"),
    [
        ("host:8000", "http", "host:8000"),
        ("http://host:8000/", "http", "host:8000"),
        ("grpc://host:8001", "grpc", "host:8001"),
    ],
)
def test_urls(server, url, protocol, address):
    reload("encoder", url)
    assert server.calls[0] == ("connect", protocol, address)


def test_a_version_that_is_never_ready(server):
    server.ready = False
    with pytest.raises(ServingError, match=r"not ready after 0.1 seconds: .*version 2: UNAVAILABLE no memory"):
        reload("encoder", "host:8000", version=2, timeout=0.1)


def test_a_smoke_test_that_is_interrupted_withdraws(server, tmp_path):
    root = tmp_path / "repo"
    publish(make_plan(tmp_path), root)
    before = tree(root)

    def smoke() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_live(publish(make_plan(tmp_path, b"new"), root), root, "host:8000", smoke)
    assert tree(root) == before and server.calls[-1] == ("load", "encoder")


def test_going_back_that_fails_too_is_said(server, tmp_path, monkeypatch):
    root = tmp_path / "repo"
    publish(make_plan(tmp_path), root)
    refuse(server, "out of memory")

    def refused(root: Path, publication: object) -> None:
        raise RepositoryError("the disk is full")

    monkeypatch.setattr(module, "withdraw", refused)
    with pytest.raises(ServingError, match="out of memory\ngoing back failed, too: the disk is full"):
        publish_live(publish(make_plan(tmp_path, b"new"), root), root, "host:8000")


def test_what_was_published_before_is_not_withdrawn(server, tmp_path):
    root = tmp_path / "repo"
    publish(make_plan(tmp_path), root)
    before = tree(root)
    refuse(server, "out of memory")
    with pytest.raises(ServingError, match="does not serve version 1 of 'encoder': out of memory"):
        publish_live(publish(make_plan(tmp_path), root), root, "host:8000")
    assert tree(root) == before


def test_a_version_that_the_policy_leaves_out_is_not_waited_for(server, tmp_path):
    root = tmp_path / "repo"
    policy = "version_policy { specific { versions: [1] } }\n"
    publish(make_plan(tmp_path, extra=policy), root)
    published = publish(make_plan(tmp_path, b"new", extra=policy), root)
    publish_live(published, root, "host:8000")
    assert published.note and published.version == 2
