"""`Repository`: the models of a directory, each read once and when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from builder.model_config import new_config
from builder.releases import Release
from builder.repository.lint.finding import Finding
from builder.repository.lint.folder import Folder
from builder.repository.lint.model import Model
from builder.repository.lint.positions import Positions
from builder.repository.lint.reading import parse_config, read_text

__all__ = ["CONFIG_NAME", "Loaded", "Repository"]

CONFIG_NAME = "config.pbtxt"
_ALTERNATIVES = "configs"


@dataclass(frozen=True)
class Loaded:
    """What was read of one model.

    Args:
        folder: its directory.
        main: the model by its config.pbtxt, or by what its files tell where it has none; None where that file
            cannot be read.
        alternatives: the same model by each file of configs/.
        findings: why a file cannot be read.
        configured: whether there is a config.pbtxt.
    """

    folder: Folder
    main: Model | None
    alternatives: tuple[Model, ...]
    findings: tuple[Finding, ...]
    configured: bool


@dataclass(frozen=True)
class Repository:
    """The models below a root."""

    root: Path
    release: Release | None
    _loaded: dict[str, Loaded] = field(default_factory=dict, repr=False, compare=False)

    def __contains__(self, name: str) -> bool:
        return name in Folder(self.root).directories

    def get(self, name: str) -> Model | None:
        """A model; None where there is none, or its configuration cannot be read."""
        return self.load(name).main if name in self else None

    def load(self, name: str) -> Loaded:
        """Read the model of a directory."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Loaded:
        folder = Folder(self.root / name)
        configured = CONFIG_NAME in folder.entries()
        if configured:
            main = self._model(folder, CONFIG_NAME)
        else:
            main = Model(str(folder.path), name, new_config(), Positions({}), self.release, folder, self)
        names = [entry for entry in folder.entries(_ALTERNATIVES) if entry.endswith(".pbtxt")]
        others = [self._model(folder, _ALTERNATIVES, entry) for entry in names]
        found = [each for each in (main, *others) if isinstance(each, Finding)]
        return Loaded(
            folder,
            main if isinstance(main, Model) else None,
            tuple(each for each in others if isinstance(each, Model)),
            tuple(found),
            configured,
        )

    def _model(self, folder: Folder, *parts: str) -> Model | Finding:
        path = folder.path.joinpath(*parts)
        text = read_text(path)
        if isinstance(text, Finding):
            return text
        parsed = parse_config(text, str(path))
        if isinstance(parsed, Finding):
            return parsed
        return Model(str(path), folder.path.name, *parsed, self.release, folder, self)
