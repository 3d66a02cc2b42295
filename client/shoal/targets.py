"""From what the user points at (a manifest, a model directory, a model file) to fields and an environment."""

import os
import re
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import orjson

from shoal import documents
from shoal.documents import read_text, read_yaml
from shoal.serving.fields import (
    FieldError,
    MachineError,
    Values,
    merge,
    parse_assignment,
    to_environment,
    without_effect,
)
from shoal.serving.manifest import Service, find_service, services_of
from shoal_schema.declaring import NAME, NAME_IN_WORDS
from shoal_schema.resource import KIND
from shoal_schema.resource.locations import MOUNTED, WEB, LocationError, local_path, parse, scheme_of, shown
from shoal_schema.resource.suffixes import KNOWN, remedy
from shoal_schema.resource.uris import BAD_AUTHORITY, has_good_authority

MANIFEST_SUFFIXES = (".yaml", ".yml")
MODEL_SUFFIXES = (*KNOWN, ".py")
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip", ".mar")
MAR_MANIFEST = "MAR-INF/MANIFEST.json"
VERSION = r"^[A-Za-z0-9._-]{1,63}\Z"
DOWNLOADS = ("http", "https")
PODS_MODELS = Path("/models")
# A manifest's folder holds the model, or what makes it.
BESIDE = "model"
TRAIN = "train.py"
# Files whose name says nothing about the model: their folder's name does.
PLAIN_NAMES = ("handler", "model")
# Most .yaml files in a model's folder are something else, and need no parser to be passed over.
_LOOKS_LIKE_SERVICE = re.compile(rf"^\s*[\"']?kind[\"']?\s*:\s*[\"']?{KIND}\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one target asks for; ``ignored`` is what only a cluster acts on."""

    target: str
    name: str
    fields: Values
    ignored: list[str]

    def environment(self) -> dict[str, str]:
        """Return the environment of a runtime that loads it: ours, and what the fields say."""
        named = {"SHOAL_MODEL_NAME": self.name}
        # What a handler prints is seen when it prints it, not when a buffer is full.
        return {"PYTHONUNBUFFERED": "1", **os.environ, **to_environment(self.fields), **named}


def planned(name: str | None, target: str, assignments: Sequence[str]) -> Plan:
    """Return how to serve ``target`` with what ``--set`` assigns, under a name if one is given.

    Raises:
        FieldError: it cannot be as it is asked for.
        MachineError: this machine cannot look there.
    """
    try:
        named = any(each.partition("=")[0].strip() == "model.format" for each in assignments)
        service = find_target(target, named=named)
    except OSError as error:  # a path too long, or in a folder that is not ours to look into
        raise MachineError(f"cannot look at {shown(target):.80}: {error.strerror}") from None
    fields, idle = service.fields, []
    for assignment in assignments:
        if without := without_effect(assignment):
            idle.append(without)
        else:
            fields = merge(fields, parse_assignment(assignment))
    check_is_here(fields["model.uri"])
    if name is not None:
        fields = {**fields, "metadata.name": name}
    known = to_environment(fields).get("SHOAL_MODEL_NAME") or os.environ.get("SHOAL_MODEL_NAME")
    return Plan(target, known or default_name(fields["model.uri"]), fields, service.without_effect(idle))


def planned_services(target: str, assignments: Sequence[str]) -> list[Plan]:
    """Return how to serve every service of a file with several; ``--set`` is of none of them.

    Raises:
        FieldError: one cannot be as it is asked for.
        MachineError: this machine cannot look there.
    """
    if assignments:
        raise FieldError("--set is of one model: write the field into its InferenceService in the file")
    file = Path(target)
    plans = []
    for each in services_of(read_yaml(read_text(file))):
        service = Service(_absolute(each.fields, file.parent), each.ignored)
        name = service.fields.get("metadata.name") or default_name(service.fields["model.uri"])
        try:
            check_is_here(service.fields["model.uri"], "write into model.uri")
        except FieldError as error:
            raise FieldError(f"service {name}: {error}") from None
        plans.append(Plan(target, name, service.fields, service.without_effect([])))
    return plans


def named_target(text: str) -> tuple[str | None, str]:
    """Return the name and the target in ``NAME=TARGET``; a path that is there is a target, whatever is in it.

    Raises:
        FieldError: what stands before ``=`` cannot be a model's name.
    """
    name, equals, target = text.partition("=")
    if not equals or not target or "/" in name or Path(text).exists():
        return None, text
    if not re.search(NAME, name):
        raise FieldError(f"{name!r:.80} cannot be a model's name ({NAME_IN_WORDS})")
    return name, target


def find_target(target: str, *, named: bool = False) -> Service:
    """Return the fields that a path or a URL stands for; ``model.uri`` is absolute.

    Args:
        target: the path or URL.
        named: whether somebody has said the model's format, so that its file may be called anything.

    Raises:
        FieldError: there is nothing to serve there; the message says what would do.
    """
    if not has_good_authority(target):
        raise FieldError(f"{shown(target)} {BAD_AUTHORITY}")
    scheme = scheme_of(target)
    target = scheme.lower() + target.removeprefix(scheme)
    return _found(_path_of(target), named=named) if scheme_of(target) in ("", "file") else _remote(target)


def files_beside(target: str) -> tuple[str, ...]:
    """Return the files of the folder that ``target`` is or lies in, as they are called from here; none of a URL."""
    path = Path(target)
    folder = path if path.is_dir() else path.parent
    return () if scheme_of(target) else tuple(str(each) for each in sorted(folder.iterdir()) if each.is_file())


def check_is_here(uri: str, say: str = "--set model.uri=DIR says") -> None:
    """Raise before two processes start what the runtime would say seconds later.

    Args:
        uri: of the model.
        say: how to name another.

    Raises:
        FieldError: ``uri`` is a path of this machine at which nothing lies; the message says where it may lie.
    """
    if scheme_of(uri) not in ("", "file"):
        _remote(uri)
        return
    path = _path_of(uri)
    if path.exists():
        return
    if path.name == BESIDE and (path.parent / TRAIN).is_file():
        raise FieldError(f"there is no model at {path} yet: python {path.parent / TRAIN} makes it")
    place = " (a pod's place for it)" if path.parent == PODS_MODELS else ""
    raise FieldError(
        f"there is no model at {os.path.normpath(path)}{place}: on this machine {say} where it lies, or a folder"
        " of its name, or `model`, beside the manifest holds it"
    )


def _path_of(target: str) -> Path:
    try:
        return Path(local_path(target) if scheme_of(target) else target)
    except LocationError as error:
        raise FieldError(str(error)) from None


def _remote(uri: str) -> Service:
    """Take a URI at its word: the runtime downloads what is there, and says what is wrong with it."""
    try:
        location = parse(uri)
    except LocationError as error:
        raise FieldError(str(error)) from None
    if location.scheme in MOUNTED:
        raise FieldError(f"{shown(uri)} is mounted by a cluster: copy it to a folder, and serve that")
    if location.path.endswith(MANIFEST_SUFFIXES):
        raise FieldError(f"{shown(uri)} is a manifest: download it, and serve the file")
    return Service({"model.uri": uri})


def _found(path: Path, *, named: bool) -> Service:
    if path.is_dir():
        manifests = [each for each in sorted(path.iterdir()) if _may_be_service(each)]
        services = {each.name: service for each in manifests if (service := _read(each))}
        if len(services) > 1:
            raise FieldError(f"{path} holds several manifests, name one: {', '.join(services)}")
        return next(iter(services.values()), Service({"model.uri": str(path.absolute()), **_version_in(path)}))
    if not path.exists():
        link = f", a link to {path.readlink()}" if path.is_symlink() else ""
        raise FieldError(f"there is no file or directory {path}{link}")
    if path.suffix in MANIFEST_SUFFIXES:
        if service := _read(path):
            return service
        raise FieldError(f"{path} holds no document of kind {KIND}")
    if named or _model_suffix(path):
        return Service({"model.uri": str(path.absolute()), **_version_in(path)})
    if foreign := remedy([path.name]):
        raise FieldError(foreign)
    known = ", ".join((*MANIFEST_SUFFIXES, *MODEL_SUFFIXES, *ARCHIVE_SUFFIXES))
    raise FieldError(
        f"{path} is neither a manifest nor a model: known are {known} and directories;"
        " --set model.format=FORMAT says what a file of another name is"
    )


def _version_in(path: Path) -> Values:
    """Return the version that a TorchServe archive names, if it does: its callers may ask for it."""
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
    """Return the model's name when none was given: from ``model.toml``, else from the path.

    Raises:
        FieldError: ``model.toml`` gives a name that no path can have.
    """
    here = scheme_of(uri) in ("", "file")
    path = _path_of(uri) if here else _path_there(uri)
    named = _toml_name(path / "model.toml") if here else None
    if named:
        if not re.search(NAME, named):
            raise FieldError(f"{path / 'model.toml'}: name must be {NAME_IN_WORDS}, not {named!r:.200}")
        return named
    suffix = _model_suffix(path)
    stem = path.name[: len(path.name) - len(suffix)]
    name = path.parent.name if stem in PLAIN_NAMES and suffix else stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "model"


def _path_there(uri: str) -> Path:
    location = parse(uri)
    return Path(unquote(location.path) if location.scheme in WEB else f"{location.authority}/{location.path}")


def _model_suffix(path: Path) -> str:
    """Return the suffix of a file that is a model or an archive of one; empty for any other."""
    name = path.name.lower()
    return next((each for each in (*MODEL_SUFFIXES, *ARCHIVE_SUFFIXES) if name.endswith(each)), "")


def _may_be_service(file: Path) -> bool:
    """Return whether it looks like a manifest; any other file, or one that is too long, belongs to the model."""
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
        raise MachineError(f"cannot read {file}: {error.strerror}") from error
    if service is None:
        return None
    return Service(_absolute(service.fields, file.parent), service.ignored)


def _absolute(fields: Values, folder: Path) -> Values:
    """Return the fields with a relative ``model.uri`` counted from the manifest's folder."""
    uri = str(fields.get("model.uri", ""))
    if not uri:
        raise FieldError("spec.model.uri is missing: it says where the model lies")
    path = uri.removeprefix("file://")
    if scheme_of(path):
        return fields
    if Path(path).is_absolute():
        return _in_pod(fields, Path(path), folder)
    return {**fields, "model.uri": str((folder / path).absolute())}


def _in_pod(fields: Values, path: Path, folder: Path) -> Values:
    """Find a pod's ``/models/NAME`` in ``NAME`` or ``model`` beside the manifest, if it is not here."""
    if path.parent != PODS_MODELS or path.exists():
        return fields
    named, beside = folder / path.name, folder / BESIDE
    if named.is_dir() or beside.is_dir() or (folder / TRAIN).is_file():
        return {**fields, "model.uri": str((named if named.is_dir() else beside).absolute())}
    return fields


def _toml_name(file: Path) -> str | None:
    """Return the name in a ``model.toml``; what is wrong with the file is the runtime's to say."""
    try:
        name = tomllib.loads(read_text(file)).get("name")
    # ValueError: no TOML, or a number of thousands of digits; FieldError is one too.
    except (OSError, ValueError, RecursionError):
        return None
    return name if isinstance(name, str) and "\0" not in name else None
