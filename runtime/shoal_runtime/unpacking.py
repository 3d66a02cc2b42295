"""Archives, unpacked so that nothing lands outside the folder."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from shoal_runtime.errors import LoadError

TAR_SUFFIXES: Final = (".tar.gz", ".tgz", ".tar")
ZIP_SUFFIXES: Final = (".zip",)


def archive_stem(name: str) -> str | None:
    """Return the name without its archive suffix; None when it is no archive's name."""
    for suffix in (*TAR_SUFFIXES, *ZIP_SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def unpack(path: Path, target: Path, name: str) -> Path:
    """Unpack an archive into the folder.

    Args:
        path: the archive.
        target: an empty folder.
        name: what the archive is called; tells its kind.

    Returns:
        The folder with the model: the target, or the one folder that the archive holds.

    Raises:
        LoadError: it is no archive, or a member would land outside the folder.
    """
    try:
        if name.lower().endswith(ZIP_SUFFIXES):
            _unzip(path, target)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(target, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise LoadError(f"{name} cannot be unpacked: {error}") from None
    return _only_folder(target)


def _unzip(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_member(member)
        for member in archive.infolist():
            place = target / member.filename
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, place.open("wb") as file:
                shutil.copyfileobj(source, file)


def _check_member(member: zipfile.ZipInfo) -> None:
    parts = PurePosixPath(member.filename.replace("\\", "/")).parts
    outside = ".." in parts or any(part.startswith("/") or ":" in part for part in parts[:1])
    if outside or stat.S_ISLNK(member.external_attr >> 16):
        raise LoadError(f"the archive's {member.filename!r} would land outside its folder")


def _only_folder(target: Path) -> Path:
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target
