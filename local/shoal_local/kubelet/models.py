"""The folders that pods see as ``file:///models/NAME``: in a file, so that a running kubelet learns of new ones."""

from collections.abc import Mapping
from pathlib import Path

from shoal_local.kubelet.records import read_json, write_json


class Models:
    """Names and folders of models, beside the pods' files."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "models.json"

    def add(self, models: Mapping[str, str]) -> None:
        """Add models, or give a name another folder; pods that run keep what they have."""
        if models:
            write_json(self._file, {**self._all(), **models})

    def folders(self) -> dict[str, str]:
        """Return the folders by name, as they are now; one that has gone stops no other."""
        return {name: folder for name, folder in self._all().items() if Path(folder).is_dir()}

    def _all(self) -> dict[str, str]:
        return dict(read_json(self._file) or {})
