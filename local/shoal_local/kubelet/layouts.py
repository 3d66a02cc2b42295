"""Unpacks a container image from an OCI layout in a directory of this machine, as `skopeo copy ... oci:DIR` makes it."""

import hashlib
import json
import platform
import shutil
import tarfile
from pathlib import Path

from shoal_local.objects import Object

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_CPUS = {"x86_64": "amd64", "aarch64": "arm64"}


def unpack(layout: Path, directory: Path) -> None:
    """Make ``directory`` hold the image's files, whole or not at all.

    Raises OSError: it is no layout, a blob is missing or not what its name says, or a layer is no tar.
    """
    if directory.exists():
        return
    new = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        for layer in _manifest(layout)["layers"]:
            _add(_blob(layout, layer), new)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
        raise OSError(f"{layout} is no OCI layout that can be unpacked: {error}") from None
    new.rename(directory)


def _manifest(layout: Path) -> Object:
    """Return the first manifest that fits this machine; an index may hold one of several platforms."""
    own = _CPUS.get(platform.machine(), platform.machine())
    found: Object = json.loads((layout / "index.json").read_bytes())
    while "manifests" in found:
        fitting = [each for each in found["manifests"] if each.get("platform", {}).get("architecture", own) == own]
        found = json.loads(_blob(layout, (fitting or found["manifests"])[0]).read_bytes())
    return found


def _blob(layout: Path, entry: Object) -> Path:
    algorithm, _, digest = str(entry["digest"]).partition(":")
    path = layout / "blobs" / algorithm / Path(digest).name
    with path.open("rb") as file:
        if hashlib.file_digest(file, algorithm).hexdigest() != digest:
            raise ValueError(f"{entry['digest']} is not what its name says")
    return path


def _add(layer: Path, directory: Path) -> None:
    """Lay a layer over those before it: what it marks is taken away, and no member leads out of the directory."""
    with tarfile.open(layer) as archive:
        members = archive.getmembers()
        for member in members:  # marks speak of the layers below, wherever in this one they stand
            path = Path(member.name)
            name = path.name.removeprefix(_WHITEOUT)
            leads_up = path.name != name and name in ("", ".", "..")
            if path.is_absolute() or ".." in path.parts or leads_up:
                raise ValueError(f"a layer holds {member.name!r}, which leads out of the image")
            if path.name == _OPAQUE:
                shutil.rmtree(directory / path.parent, ignore_errors=True)
                (directory / path.parent).mkdir(parents=True)
            elif path.name.startswith(_WHITEOUT):
                gone = directory / path.with_name(name)
                shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
        for member in members:
            if not Path(member.name).name.startswith(_WHITEOUT):
                archive.extract(member, directory, filter="data")
