"""What an entry says of itself: `entry.json`, signed when there is a key to sign with.

The signature is an HMAC-SHA256 over the record, and the record carries the digest of every file, so that
nobody without the key can put other code behind an engine key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.cache.key import EngineKey, canonical_json, engine_key

__all__ = ["ENTRY_FILE", "FILES", "FileInfo", "Record", "RecordError", "SignatureError", "is_key"]

ENTRY_FILE = "entry.json"

# The directory of an entry that holds what the compiler wrote.
FILES = "files"

_SCHEMA = 2


class RecordError(Exception):
    """An entry that cannot be what it should be; the text says why."""


class SignatureError(RecordError):
    """An entry that is not signed with our key."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Size in bytes, and blake3 (hex) of a file."""

    size: int
    blake3: str


@dataclass(frozen=True, slots=True)
class Record:
    """An engine in the cache.

    Args:
        key: of the engine.
        components: what the key is the hash of.
        artifact: the file below `files/` that a runner, or a refit, opens.
        files: every file of the entry by its path relative to the entry ("files/model.onnx", "graph.txt").
        refit: "weights" where the engine is kept without weights, else "none".
        fixed: tensors of the first model that are in the key by value, each with the reason.
        settings: of the build, readable.
        versions: of the packages that built it.
        build_seconds: what compiling took.
        created: UTC, ISO 8601.
        builder: user and host.
    """

    key: EngineKey
    components: Mapping[str, Any]
    artifact: str
    files: Mapping[str, FileInfo]
    refit: str = "none"
    fixed: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    build_seconds: float = 0.0
    created: str = ""
    builder: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files.values())

    @property
    def compiler(self) -> str:
        return str(self.components.get("compiler", ""))

    def to_bytes(self, secret: bytes | None) -> bytes:
        """As it is written; signed if there is a secret."""
        record = json.loads(canonical_json({**dataclasses.asdict(self), "schema": _SCHEMA}))
        signature = _signature(record, secret) if secret else None
        return json.dumps({"record": record, "signature": signature}, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes, key: EngineKey, secret: bytes | None, *, quick: bool = False) -> Record:
        """Read a record, and check all that can be checked without its files.

        Args:
            quick: for a listing; does not ask whether the key is the hash of the components.
        Raises:
            SignatureError: when there is a secret and the record is not signed with it.
            RecordError: when it is damaged, of another schema, or not that of the key.
        """
        try:
            document = json.loads(data)
            record = document["record"]
            signature = document["signature"]
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"its record cannot be read: {error}") from None
        if secret:
            if not isinstance(signature, str):
                raise SignatureError("it is not signed, and a key is configured")
            if not hmac.compare_digest(signature, _signature(record, secret)):
                raise SignatureError("its signature is not of the configured key")
        try:
            if record.pop("schema") != _SCHEMA:
                raise RecordError("it was written by another version of triton-repo")
            files = {_inside(n): FileInfo(int(f["size"]), str(f["blake3"])) for n, f in record.pop("files").items()}
            parsed = cls(**{**record, "files": files, "fixed": tuple(record["fixed"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"its record is incomplete: {error}") from None
        if parsed.key != key or not (quick or engine_key(parsed.components) == key):
            raise RecordError("its record is that of another key")
        if f"{FILES}/{parsed.artifact}" not in files:
            raise RecordError("its engine is missing")
        return parsed


def is_key(text: str) -> bool:
    """Whether a name is that of an engine key."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _signature(record: Mapping[str, Any], secret: bytes) -> str:
    return hmac.new(secret, canonical_json(record), hashlib.sha256).hexdigest()


def _inside(name: str) -> str:
    """A file's name if it stays inside the entry."""
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"the file name {name!r} leads out of the entry")
    return name
