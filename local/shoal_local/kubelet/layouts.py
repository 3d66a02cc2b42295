"""Unpacks a container image from an OCI layout of this machine, as `skopeo copy ... oci:DIR` writes it."""

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
    """Write the image's files to ``directory``, all or nothing.

    Raises OSError: the directory is not an OCI layout, a blob is missing or differs from its digest, or a layer is not
        a tar archive.
    """
    if directory.exists():
        return
    new = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        # The first manifest for this machine's architecture; an index may hold one per platform.
        own = _CPUS.get(platform.machine(), platform.machine())
        manifest: Object = json.loads((layout / "index.json").read_bytes())
        while "manifests" in manifest:
            listed = manifest["manifests"]
            fitting = [each for each in listed if each.get("platform", {}).get("architecture", own) == own]
            manifest = json.loads(_blob(layout, (fitting or listed)[0]).read_bytes())
        for layer in manifest["layers"]:
            _add(_blob(layout, layer), new)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
        raise OSError(f"{layout} is not a valid OCI layout: {error}") from None
    new.rename(directory)


def _blob(layout: Path, entry: Object) -> Path:
    algorithm, _, digest = str(entry["digest"]).partition(":")
    # The name alone: a digest must not lead out of the layout.
    path = layout / "blobs" / algorithm / Path(digest).name
    with path.open("rb") as file:
        if hashlib.file_digest(file, algorithm).hexdigest() != digest:
            raise ValueError(f"the content of {entry['digest']} does not match this digest")
    return path


def _add(layer: Path, directory: Path) -> None:
    """Extract a layer over the earlier ones: apply its whiteouts, reject members outside of the directory."""
    with tarfile.open(layer) as archive:
        members = archive.getmembers()
        # Whiteouts apply to the layers below, wherever they stand in this layer: so they go first.
        for member in members:
            path = Path(member.name)
            name = path.name.removeprefix(_WHITEOUT)
            leads_up = path.name != name and name in ("", ".", "..")
            if path.is_absolute() or ".." in path.parts or leads_up:
                raise ValueError(f"a layer holds {member.name!r}, which is outside of the image")
            # Removes all entries of the directory in the layers below.
            if path.name == _OPAQUE:
                shutil.rmtree(directory / path.parent, ignore_errors=True)
                (directory / path.parent).mkdir(parents=True)
            # Removes one entry of the layers below.
            elif path.name.startswith(_WHITEOUT):
                gone = directory / path.with_name(name)
                shutil.rmtree(gone) if gone.is_dir() and not gone.is_symlink() else gone.unlink(missing_ok=True)
        for member in members:
            if not Path(member.name).name.startswith(_WHITEOUT):
                archive.extract(member, directory, filter="data")
