"""The volumes of a pod: directories of this machine at mount paths.

An image volume is unpacked from an OCI layout of this machine, as `skopeo copy ... oci:DIR` writes it.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

from shoal_local.api_client import make_kubeconfig
from shoal_local.kubelet.images import find_layout
from shoal_local.kubelet.machine import ARCHITECTURE, ROOT_CERTIFICATE, Machine, account_token
from shoal_local.kubelet.records import PodRecord
from shoal_local.kubelet.variables import REFERENCES, ConfigError, Context, Objects, field_value, name_in, referenced
from shoal_local.objects import Object

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


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
        manifest: Object = json.loads((layout / "index.json").read_bytes())
        while "manifests" in manifest:
            listed = manifest["manifests"]
            names = [each.get("platform", {}).get("architecture", ARCHITECTURE) for each in listed]
            fitting = [each for each, name in zip(listed, names, strict=True) if name == ARCHITECTURE]
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


ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
ACCOUNT_VOLUME = "kube-api-access"
_ACCOUNT: Object = {
    "name": ACCOUNT_VOLUME,
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": ROOT_CERTIFICATE, "optional": True}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    },
}


_OBJECTS = ("configMap", "secret")
"""Fields of a volume whose files are the data of an object."""


class VolumeError(Exception):
    """A volume cannot be made; the message names it and the reason."""


class Volumes:
    """The volumes of one pod."""

    def __init__(self, pod: Object, record: PodRecord, machine: Machine) -> None:
        self._pod = pod
        self._record = record
        self._machine = machine
        self._unpacking = asyncio.Lock()
        self._sources: dict[str, Path] = {}

    async def prepare(self, context: Context) -> None:
        """Make missing volumes; update the files that come from the API.

        Raises VolumeError: a kind of volume is not supported, or its source is missing.
        """
        spec = self._pod["spec"]
        # A pod that mounts its own volume at the account's path keeps it.
        mounts = [m["mountPath"].rstrip("/") for c in spec["containers"] for m in c.get("volumeMounts") or []]
        needs_account = ACCOUNT_PATH not in mounts and spec.get("automountServiceAccountToken") is not False
        for volume in [*(spec.get("volumes") or []), *([_ACCOUNT] if needs_account else [])]:
            self._sources[volume["name"]] = await self._make(volume, context)
        if not self._machine.mounts:
            # A link of another user could lead containers to that user's files.
            link = _short_path(self._record.uid)
            self._record.volumes.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(self._record.volumes)
            if link.lstat().st_uid != os.geteuid() or not link.is_symlink():
                raise VolumeError(f"{link} belongs to another user. Remove it")

    @property
    def follows(self) -> bool:
        """Return whether a volume has a ConfigMap or Secret, which may change."""
        return any(field in volume for volume in self._pod["spec"].get("volumes") or [] for field in _OBJECTS)

    def renew(self, objects: Objects) -> None:
        """Update the files of Secrets and ConfigMaps in existing volumes.

        Raises VolumeError: an object was deleted; its files stay.
        """
        for volume in self._pod["spec"].get("volumes") or []:
            for field in _OBJECTS:
                directory = self._record.volumes / volume["name"]
                if field in volume and directory.exists():
                    _write_files(directory, _object_files(field, volume, objects))

    async def _make(self, volume: Object, context: Context) -> Path:
        directory: Path = self._record.volumes / volume["name"]
        if "emptyDir" in volume:
            if (volume["emptyDir"] or {}).get("medium") == "Memory" and os.access("/dev/shm", os.W_OK):
                directory = Path("/dev/shm", f"shoal-{self._record.uid}", directory.name)
            if not directory.exists():
                directory.mkdir(parents=True)
                directory.chmod(0o777)
            return directory
        if "hostPath" in volume:
            return _host_path(volume)
        if "image" in volume:
            reference = volume["image"]["reference"]
            layout = find_layout(reference, self._machine.images.table(), str(self._machine.images.file))
            # The pod's containers start at the same time, and may share the volume.
            async with self._unpacking:
                await asyncio.to_thread(unpack, Path(layout), directory)
            return directory
        files: dict[str, bytes] = {}
        for source in (volume["projected"].get("sources") or []) if "projected" in volume else [volume]:
            files |= await self._source_files(source, volume["name"], context)
        _write_files(directory, files)
        return directory

    async def _source_files(self, source: Object, name: str, context: Context) -> dict[str, bytes]:
        for field in _OBJECTS:
            if field in source:
                return _object_files(field, source, context.objects)
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items") or []
            try:
                fields = [
                    (item["path"], item.get("fieldRef", {}).get("fieldPath", "resourceFieldRef")) for item in items
                ]
                return {path: field_value(field, context).encode() for path, field in fields}
            except ConfigError as error:
                raise VolumeError(str(error)) from None
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            token = await account_token(self._machine.client, self._pod, wanted)
            return {wanted["path"]: token.encode()}
        kind = ", ".join(key for key in source if key != "name")
        raise VolumeError(
            f'volume "{name}": {kind} volumes are not supported by the kubelet of shoal local. '
            "Use emptyDir, hostPath, image, configMap, secret, projected or downwardAPI"
        )

    def mounts_of(self, container: Object) -> list[Object]:
        """Return the mounts of a container; call ``prepare`` first.

        Raises VolumeError: a mount has a sub-path.
        """
        mounts = []
        for mount in container.get("volumeMounts") or []:
            if "subPath" in mount or "subPathExpr" in mount:
                raise VolumeError(
                    f'volume "{mount["name"]}": sub-paths are not supported by the kubelet of shoal local'
                )
            source = str(self._source(mount["name"]))
            mounts.append({"source": source, "target": mount["mountPath"], "read_only": bool(mount.get("readOnly"))})
        if ACCOUNT_VOLUME in self._sources:
            source = str(self._source(ACCOUNT_VOLUME))
            mounts.append({"source": source, "target": ACCOUNT_PATH, "read_only": True})
        return mounts

    def _source(self, name: str) -> Path:
        found, stored = self._sources[name], self._record.volumes
        moved = not self._machine.mounts and found.parent == stored
        return _short_path(self._record.uid) / name if moved else found


def remove_volumes(uid: str) -> None:
    """Remove a pod's volumes in memory and the short path to its volumes."""
    shutil.rmtree(Path("/dev/shm", f"shoal-{uid}"), ignore_errors=True)
    with contextlib.suppress(OSError):
        _short_path(uid).unlink()


def _short_path(uid: str) -> Path:
    """Return a short path to a pod's volumes: the path of a socket has at most 107 bytes."""
    return Path("/tmp", f"shoal-{uid}")


def write_account_kubeconfig(directory: Path, server: str, namespace: str) -> Path | None:
    """Write a kubeconfig beside a service account's token; return its path, or None without a token."""
    if not (directory / "token").is_file():
        return None
    authority = directory / "ca.crt"
    trust = {"certificate-authority": str(authority)} if authority.is_file() else {}
    document = make_kubeconfig(server, trust, (directory / "token").read_text(), namespace)
    file = directory / "kubeconfig"
    # Restricted before the token is written.
    file.touch(mode=0o600)
    file.write_text(json.dumps(document))
    return file


def _host_path(volume: Object) -> Path:
    spec = volume["hostPath"]
    path, kind = Path(spec["path"]), spec.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch()
    checks = {"Directory": path.is_dir, "File": path.is_file, "Socket": path.is_socket}
    if not path.exists() or not checks.get(kind, path.exists)():
        raise VolumeError(f'volume "{volume["name"]}": hostPath {path} is not a {kind or "file or directory"}')
    return path


def _object_files(field: str, source: Object, objects: Objects) -> dict[str, bytes]:
    """Return the files of a ConfigMap or Secret: all keys, or its ``items``."""
    try:
        obj = referenced(field, source, objects)
    except ConfigError as error:
        raise VolumeError(str(error)) from None
    data: dict[str, bytes] = obj.get("data", {})
    data |= {key: base64.b64decode(text) for key, text in (obj.get("binaryData") or {}).items()}
    items = source[field].get("items")
    if not items:
        return data
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not source[field].get("optional"):
        raise VolumeError(f'{REFERENCES[field].lower()} "{name_in(source[field])}" has no key {missing[0]!r}')
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}


def _write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Make a directory contain exactly these files, each replaced atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(data)
            new.replace(path)
    # Keys that were removed from the object.
    for path in [p for p in directory.rglob("*") if p.is_file()]:
        if str(path.relative_to(directory)) not in files:
            path.unlink()
