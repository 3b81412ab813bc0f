"""Publishing into an object store: what a server could read at any moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from builder.errors import RepositoryError
from builder.model_config import parse_config
from builder.repository import remote_files, remote_target
from builder.repository.remote_target import publish_remote
from builder.runtime.manifest import Manifest
from tests.unit.publishing import make_ensemble, make_member, make_plan

URL = "shelf://bucket/repo"
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"
CACHE = "response_cache { enable: true }\n"


class Shelf(MemoryFileSystem):
    """An object store that can fail at any write, before or after it."""

    protocol = "shelf"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    writes: ClassVar[list[str]] = []
    fail_at: ClassVar[int] = -1
    fail_after: ClassVar[bool] = False
    lock: ClassVar[threading.RLock] = threading.RLock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("shelf:/"))

    def pipe_file(self, path: str, value: bytes, **named: Any) -> None:
        with self.lock:
            self._write(path, lambda: super(Shelf, self).pipe_file(path, value, **named))

    def put_file(self, lpath: str, rpath: str, **named: Any) -> None:
        with self.lock:
            self._write(rpath, lambda: super(Shelf, self).put_file(lpath, rpath, **named))

    def cat_file(self, path: str, **named: Any) -> bytes:
        with self.lock:
            return super().cat_file(path, **named)

    def find(self, path: str, **named: Any) -> Any:
        with self.lock:
            return super().find(path, **named)

    def ls(self, path: str, **named: Any) -> Any:
        with self.lock:
            return super().ls(path, **named)

    def rm_file(self, path: str) -> None:
        with self.lock:
            super().rm_file(path)

    def _write(self, path: str, write: Any) -> None:
        fails = len(self.writes) == type(self).fail_at
        self.writes.append(self._strip_protocol(path))
        if fails and not self.fail_after:
            raise PermissionError("Access Denied")
        write()
        if fails:
            raise PermissionError("Access Denied")


fsspec.register_implementation("shelf", Shelf, clobber=True)


@pytest.fixture(autouse=True)
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote_target, "OBJECT_STORES", frozenset({"shelf"}))
    monkeypatch.setattr(remote_files.time, "sleep", lambda seconds: threading.Event().wait(min(seconds, 0.02)))
    Shelf.store.clear()
    Shelf.pseudo_dirs[:] = [""]
    Shelf.writes.clear()
    Shelf.fail_at, Shelf.fail_after = -1, False
    yield


def objects() -> dict[str, bytes]:
    return {path.removeprefix("/bucket/repo/"): file.getvalue() for path, file in Shelf.store.items()}


def config(name: str = "encoder") -> Any:
    return parse_config(objects()[f"{name}/config.pbtxt"].decode())


def test_the_configuration_comes_last_and_serves_this_version_only(tmp_path):
    published = publish_remote(make_plan(tmp_path), URL)
    assert (published.version, published.created, str(published.path)) == (1, True, "/bucket/repo/encoder/1")
    assert set(objects()) == {
        "encoder/1/config.pbtxt",
        "encoder/1/manifest.json",
        "encoder/1/model.py",
        "encoder/1/segments/segment_0.onnx",
        "encoder/config.pbtxt",
        "encoder/warmup/opt@x@8x4",
    }
    assert Shelf.writes[-1] == "/bucket/repo/encoder/config.pbtxt"
    assert list(config().version_policy.specific.versions) == [1]
    second = publish_remote(make_plan(tmp_path, b"other"), URL)
    assert (second.version, second.note) == (2, "")
    assert list(config().version_policy.specific.versions) == [2]
    assert objects()["encoder/2/segments/segment_0.onnx"] == b"other"


def test_the_same_content_writes_nothing(tmp_path):
    publish_remote(make_plan(tmp_path), URL)
    before = objects()
    Shelf.writes.clear()
    again = publish_remote(make_plan(tmp_path, built_at="later"), URL)
    assert (again.version, again.created) == (1, False)
    assert objects() == before and Shelf.writes == []


def test_what_is_missing_beside_the_same_content_is_restored(tmp_path):
    plan = make_ensemble(tmp_path, b"a", b"b")
    publish_remote(plan, URL)
    before = objects()
    for path in (f"{plan.members[0].name}/1/model.py", "whole/config.pbtxt"):
        del Shelf.store[f"/bucket/repo/{path}"]
    assert not publish_remote(plan, URL).created
    assert objects() == before


def test_a_signature_and_its_replacement(tmp_path):
    publish_remote(make_plan(tmp_path), URL)
    before = objects()
    with pytest.raises(RepositoryError, match="other inputs or outputs"):
        publish_remote(make_plan(tmp_path, width=5), URL)
    assert objects() == before
    assert publish_remote(make_plan(tmp_path, width=5), URL, replace=True).version == 2


def edit(text: str, name: str = "encoder") -> None:
    Shelf().pipe_file(f"/bucket/repo/{name}/config.pbtxt", objects()[f"{name}/config.pbtxt"] + text.encode())


def test_edits_are_merged(tmp_path):
    publish_remote(make_plan(tmp_path), URL)
    edit(f"# mine\n{TWO}")
    published = publish_remote(make_plan(tmp_path, b"other", extra=CACHE), URL)
    assert "instance_group" in published.note
    found = config()
    assert found.instance_group[0].count == 2 and found.response_cache.enable
    assert list(found.version_policy.specific.versions) == [2]
    assert b"# mine" in objects()["encoder/config.pbtxt"]
    assert b"# mine" in objects()["encoder/2/config.edited.pbtxt"]


def test_a_policy_that_a_person_set_stays(tmp_path):
    publish_remote(make_plan(tmp_path), URL)
    path = "/bucket/repo/encoder/config.pbtxt"
    text = objects()["encoder/config.pbtxt"].decode()
    Shelf().pipe_file(path, text.replace("specific { versions: [ 1 ] }", "all { }").encode())
    for weights in (b"2", b"3"):
        published = publish_remote(make_plan(tmp_path, weights), URL)
        assert published.created and config().version_policy.WhichOneof("policy_choice") == "all"
    policy = "version_policy { latest { num_versions: 2 } }\n"
    publish_remote(make_plan(tmp_path, b"4", extra=policy), URL, config="overwrite")
    assert config().version_policy.latest.num_versions == 2


@pytest.mark.parametrize("after", [False, True])
def test_a_failure_at_any_write_leaves_what_was_there(tmp_path, after):
    publish_remote(make_ensemble(tmp_path, b"a", b"b"), URL)
    edit("# mine\n", "whole")
    before = objects()
    plan = make_ensemble(tmp_path, b"a", b"c", extra=CACHE)
    for index in range(100):
        Shelf.writes.clear()
        Shelf.fail_at, Shelf.fail_after = index, after
        try:
            publish_remote(plan, URL)
        except RepositoryError as error:
            assert "Access Denied" in error.what
            assert objects() == before, f"write {index}: {Shelf.writes[index]}"
        else:
            break
    assert index > 5 and objects() != before


def test_where_going_back_fails_too_the_whole_version_stays(tmp_path, monkeypatch):
    publish_remote(make_plan(tmp_path), URL)
    Shelf.writes.clear()
    publish_remote(make_plan(tmp_path, b"2"), URL)
    count = len(Shelf.writes)
    original = Shelf.cat_file

    def cat_file(self: Shelf, path: str, **named: Any) -> bytes:
        if len(Shelf.writes) >= count:
            raise ConnectionError("gone")
        return original(self, path, **named)

    Shelf.writes.clear()
    Shelf.fail_at, Shelf.fail_after = count - 1, True
    monkeypatch.setattr(Shelf, "cat_file", cat_file)
    with pytest.raises(RepositoryError):
        publish_remote(make_plan(tmp_path, b"3"), URL)
    served = list(config().version_policy.specific.versions)
    assert served == [3] and {f"encoder/3/{n}" for n in ("manifest.json", "model.py")} <= set(objects())


def test_a_damaged_member_is_an_error(tmp_path):
    plan = make_ensemble(tmp_path, b"a", b"b")
    publish_remote(plan, URL)
    name = make_member("whole.segment_1", b"b").name
    for content in (b"B", b"longer"):
        Shelf().pipe_file(f"/bucket/repo/{name}/1/model.py", content)
        with pytest.raises(RepositoryError, match=f"member {name} of an ensemble is damaged"):
            publish_remote(make_ensemble(tmp_path, b"c", b"b"), URL)


def test_old_versions_and_their_members_go(tmp_path):
    for contents in ((b"a", b"b"), (b"a", b"c"), (b"a", b"d")):
        publish_remote(make_ensemble(tmp_path, *contents), URL, keep=2)
    names = {path.split("/")[0] for path in objects()}
    assert make_member("whole.segment_1", b"b").name not in names
    assert {make_member("whole.segment_1", c).name for c in (b"c", b"d")} < names
    assert not any(path.startswith("whole/1/") for path in objects())


def test_many_at_once(tmp_path):
    plans = [make_plan(tmp_path, f"weights {n}".encode(), extra=f"# {n}\n") for n in range(4)]
    with ThreadPoolExecutor(len(plans)) as pool:
        published = list(pool.map(lambda plan: publish_remote(plan, URL), plans))
    numbers = sorted(p.version for p in published)
    assert len(set(numbers)) == len(plans)
    assert list(config().version_policy.specific.versions) == [numbers[-1]]
    contents = {objects()[f"encoder/{n}/segments/segment_0.onnx"] for n in numbers}
    assert len(contents) == len(plans) and not any(".claim-" in path for path in objects())


def test_what_a_dead_publisher_left_is_passed_by(tmp_path):
    for path in (".claim-dead", "model.py"):
        Shelf().pipe_file(f"/bucket/repo/encoder/1/{path}", b"")
    assert publish_remote(make_plan(tmp_path), URL).version == 2
    assert list(config().version_policy.specific.versions) == [2]


def test_a_directory_is_published_to_as_always(tmp_path):
    published = publish_remote(make_plan(tmp_path), f"file://{tmp_path}/repo")
    assert published.path == tmp_path / "repo/encoder/1"
    assert "version_policy" not in (tmp_path / "repo/encoder/config.pbtxt").read_text()
    assert Manifest.read(published.path) == published.manifest


def test_a_foreign_model_and_an_unknown_store_are_refused(tmp_path):
    Shelf().pipe_file("/bucket/repo/encoder/1/model.onnx", b"mine")
    with pytest.raises(RepositoryError, match="no version that triton-repo wrote"):
        publish_remote(make_plan(tmp_path), URL)
    with pytest.raises(RepositoryError, match="could read half a file from memory://"):
        publish_remote(make_plan(tmp_path), "memory://repo")
    with pytest.raises(RepositoryError, match="cannot be used"):
        publish_remote(make_plan(tmp_path), "nosuch://repo")
