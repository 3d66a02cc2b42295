"""Resolve a target (manifest, model directory, model file or URL) to fields and environment variables."""

import os
import re
import tomllib
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import orjson

from shoal import documents
from shoal.documents import read_text, read_yaml
from shoal.serving.errors import FieldError, LocalError
from shoal.serving.fields import Values, check_rules, merge, parse_assignment, to_environment, without_effect
from shoal.serving.manifest import Service, find_service, services_of
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS
from shoal_schema.resource import KIND
from shoal_schema.resource.locations import MOUNTED, WEB, LocationError, local_path, parse, scheme_of, shown
from shoal_schema.resource.suffixes import KNOWN, remedy
from shoal_schema.resource.uris import BAD_AUTHORITY, has_good_authority

MANIFEST_SUFFIXES = (".yaml", ".yml")
MODEL_SUFFIXES = (*KNOWN, ".py")
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip", ".mar")
MAR_MANIFEST = "MAR-INF/MANIFEST.json"
VERSION = r"^[A-Za-z0-9._-]{1,63}\Z"
PODS_MODELS = Path("/models")
BESIDE = "model"
TRAIN = "train.py"
"""Beside a manifest: the model's directory, and the script that makes it."""
PLAIN_NAMES = ("handler", "model")
"""Generic file names; the model is named after the directory instead."""
# Most .yaml files in a model directory are no manifests, and can be skipped without parsing.
_LOOKS_LIKE_SERVICE = re.compile(rf"^\s*[\"']?kind[\"']?\s*:\s*[\"']?{KIND}\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServePlan:
    """Settings for serving one target."""

    target: str
    name: str
    fields: Values
    ignored: list[str]
    """Fields that have an effect in a cluster only."""

    def environment(self) -> dict[str, str]:
        """Return a runtime's environment: this process's variables, overridden by those of the fields."""
        named = {"SHOAL_MODEL_NAME": self.name}
        # Unbuffered, so that output of a handler appears at once.
        return {"PYTHONUNBUFFERED": "1", **os.environ, **to_environment(self.fields), **named}


def make_plan(name: str | None, target: str, assignments: Sequence[str]) -> ServePlan:
    """Return the settings for serving ``target``.

    Args:
        name: the model's name; None for the name in the target.
        target: manifest, model directory, model file or URL.
        assignments: the ``FIELD=VALUE`` texts of ``--set``.

    Raises:
        FieldError: the target or an assignment is invalid.
        LocalError: the target cannot be read on this machine.
    """
    try:
        named = any(each.partition("=")[0].strip() == "model.format" for each in assignments)
        service = find_target(target, named=named)
    except OSError as error:  # a path that is too long, or in a directory without permission
        raise LocalError(f"cannot access {shown(target):.80}: {error.strerror}") from None
    fields, idle = service.fields, []
    # In order, so that the last assignment of a field wins.
    for assignment in assignments:
        if without := without_effect(assignment):
            idle.append(without)
        else:
            fields = merge(fields, parse_assignment(assignment))
    check_rules(fields, os.environ)
    check_is_here(fields["model.uri"])
    if name is not None:
        fields = {**fields, "metadata.name": name}
    known = to_environment(fields).get("SHOAL_MODEL_NAME") or os.environ.get("SHOAL_MODEL_NAME")
    return ServePlan(target, known or default_name(fields["model.uri"]), fields, service.without_effect(idle))


def plan_services(target: str, assignments: Sequence[str]) -> list[ServePlan]:
    """Return the settings for serving each service in a graph's file.

    Raises:
        FieldError: a service is invalid, or there are ``--set`` assignments, which apply to one model only.
        LocalError: the file cannot be read.
    """
    if assignments:
        raise FieldError("--set applies to one model, not to a graph's. Set the field in its InferenceService instead")
    file = Path(target)
    plans = []
    for each in services_of(read_yaml(read_text(file))):
        service = Service(_absolute(each.fields, file.parent), each.ignored)
        name = service.fields.get("metadata.name") or default_name(service.fields["model.uri"])
        try:
            check_is_here(service.fields["model.uri"], "set model.uri to its directory")
        except FieldError as error:
            raise FieldError(f"service {name}: {error}") from None
        plans.append(ServePlan(target, name, service.fields, service.without_effect([])))
    return plans


def named_target(text: str) -> tuple[str | None, str]:
    """Split ``NAME=TARGET``; an existing path is a target even if it contains ``=``.

    Raises:
        FieldError: NAME is not a valid model name.
    """
    name, equals, target = text.partition("=")
    if not equals or not target or "/" in name or Path(text).exists():
        return None, text
    if not re.search(NAME, name):
        raise FieldError(f"a model's name must be {NAME_IN_WORDS}, not {name!r:.80}")
    return name, target


def find_target(target: str, *, named: bool = False) -> Service:
    """Return the fields for a path or URL; ``model.uri`` becomes absolute.

    Args:
        target: the path or URL.
        named: whether the model's format is given, so that its file may have any suffix.

    Raises:
        FieldError: there is no model; the message lists the accepted targets.
    """
    if not has_good_authority(target):
        raise FieldError(f"{shown(target)} {BAD_AUTHORITY}")
    scheme = scheme_of(target)
    target = scheme.lower() + target.removeprefix(scheme)
    return _found(_path_of(target), named=named) if scheme_of(target) in ("", "file") else _remote(target)


def files_beside(target: str) -> tuple[str, ...]:
    """Return the paths of the files in a target directory, or beside a target file; none for a URL."""
    path = Path(target)
    directory = path if path.is_dir() else path.parent
    return () if scheme_of(target) else tuple(str(each) for each in sorted(directory.iterdir()) if each.is_file())


def check_is_here(uri: str, remedy: str = "pass --set model.uri=DIR") -> None:
    """Check that a model's path exists, before any process starts.

    Args:
        uri: the model's URI.
        remedy: how to name another path.

    Raises:
        FieldError: ``uri`` is a path on this machine that does not exist.
    """
    if scheme_of(uri) not in ("", "file"):
        _remote(uri)
        return
    path = _path_of(uri)
    if path.exists():
        return
    if path.name == BESIDE and (path.parent / TRAIN).is_file():
        raise FieldError(f"there is no model at {path} yet. Run python {path.parent / TRAIN}")
    place = " (its path in a pod)" if path.parent == PODS_MODELS else ""
    raise FieldError(
        f"there is no model at {os.path.normpath(path)}{place}. Put it into a directory of its name, or `model`, beside"
        f" the manifest, or {remedy}"
    )


def _path_of(target: str) -> Path:
    try:
        return Path(local_path(target) if scheme_of(target) else target)
    except LocationError as error:
        raise FieldError(str(error)) from None


def _remote(uri: str) -> Service:
    """Return the fields of a remote URI, from which the runtime downloads the model."""
    try:
        location = parse(uri)
    except LocationError as error:
        raise FieldError(str(error)) from None
    if location.scheme in MOUNTED:
        raise FieldError(f"{shown(uri)} can be mounted in a cluster only. Copy it to a directory, and serve that")
    if location.path.endswith(MANIFEST_SUFFIXES):
        raise FieldError(f"{shown(uri)} is a manifest. Download it, and serve the file")
    return Service({"model.uri": uri})


def _found(path: Path, *, named: bool) -> Service:
    if path.is_dir():
        manifests = [each for each in sorted(path.iterdir()) if _may_be_service(each)]
        services = {each.name: service for each in manifests if (service := _read(each))}
        if len(services) > 1:
            raise FieldError(f"{path} has several manifests. Name one of {', '.join(services)}")
        return next(iter(services.values()), Service({"model.uri": str(path.absolute()), **_version_in(path)}))
    if not path.exists():
        # exists() follows links.
        link = f", a link to {path.readlink()}" if path.is_symlink() else ""
        raise FieldError(f"there is no file or directory {path}{link}")
    if path.suffix in MANIFEST_SUFFIXES:
        if service := _read(path):
            return service
        raise FieldError(f"{path} has no document of kind {KIND}")
    if named or _model_suffix(path):
        return Service({"model.uri": str(path.absolute()), **_version_in(path)})
    if foreign := remedy([path.name]):
        raise FieldError(foreign)
    known = ", ".join((*MANIFEST_SUFFIXES, *MODEL_SUFFIXES, *ARCHIVE_SUFFIXES))
    raise FieldError(
        f"{path} is neither a directory nor a file of {known}. For a file with another name, pass"
        " --set model.format=FORMAT"
    )


def _version_in(path: Path) -> Values:
    """Return the field ``model.version`` from a TorchServe archive.

    Requests may name this version. The result is empty if the archive has no valid version.
    """
    try:
        if path.is_dir():
            text = (path / MAR_MANIFEST).read_bytes()
        else:
            with zipfile.ZipFile(path) as archive, archive.open(MAR_MANIFEST) as file:
                text = file.read(documents.MAX_BYTES)
        version = orjson.loads(text)["model"]["modelVersion"]
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, zipfile.BadZipFile):
        return {}
    return {"model.version": version} if isinstance(version, str) and re.search(VERSION, version) else {}


def default_name(uri: str) -> str:
    """Return the model's default name: from ``model.toml``, otherwise from the path.

    Raises:
        FieldError: the name in ``model.toml`` is invalid.
    """
    named: object = None
    if scheme_of(uri) in ("", "file"):
        path = _path_of(uri)
        # The runtime reports an invalid model.toml. ValueError: no TOML, or a number with thousands of digits.
        with suppress(OSError, ValueError, RecursionError):
            named = tomllib.loads(read_text(path / "model.toml")).get("name")
    else:
        location = parse(uri)
        path = Path(unquote(location.path) if location.scheme in WEB else f"{location.authority}/{location.path}")
    if isinstance(named, str) and named and "\0" not in named:
        if not re.search(NAME, named):
            raise FieldError(f"{path / 'model.toml'}: name must be {NAME_IN_WORDS}, not {named!r:.200}")
        return named
    # cat/model.pt2 is named cat, cat.pt2 too.
    suffix = _model_suffix(path)
    stem = path.name[: len(path.name) - len(suffix)]
    name = path.parent.name if stem in PLAIN_NAMES and suffix else stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "model"


def _model_suffix(path: Path) -> str:
    """Return the suffix of a model file or archive; empty for any other file."""
    name = path.name.lower()
    return next((each for each in (*MODEL_SUFFIXES, *ARCHIVE_SUFFIXES) if name.endswith(each)), "")


def _may_be_service(file: Path) -> bool:
    """Return whether a file looks like a manifest; any other file belongs to the model."""
    try:
        return file.suffix in MANIFEST_SUFFIXES and bool(_LOOKS_LIKE_SERVICE.search(read_text(file)))
    except (FieldError, OSError):
        return False


def _read(file: Path) -> Service | None:
    try:
        service = find_service(read_yaml(read_text(file)))
    except FieldError as error:
        raise FieldError(f"{file}: {error}") from error
    except OSError as error:
        raise LocalError(f"cannot read {file}: {error.strerror}") from error
    if service is None:
        return None
    return Service(_absolute(service.fields, file.parent), service.ignored)


def _absolute(fields: Values, directory: Path) -> Values:
    """Return the fields with a relative ``model.uri`` resolved against the manifest's directory."""
    uri = str(fields.get("model.uri", ""))
    if not uri:
        raise FieldError("spec.model.uri is missing. Set it to the model's location")
    path = uri.removeprefix("file://")
    if scheme_of(path):
        return fields
    if not Path(path).is_absolute():
        return {**fields, "model.uri": str((directory / path).absolute())}
    if Path(path).parent != PODS_MODELS or Path(path).exists():
        return fields
    # A pod's /models/NAME is NAME or `model` beside the manifest.
    named, beside = directory / Path(path).name, directory / BESIDE
    if named.is_dir() or beside.is_dir() or (directory / TRAIN).is_file():
        return {**fields, "model.uri": str((named if named.is_dir() else beside).absolute())}
    return fields
