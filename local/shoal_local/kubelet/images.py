"""The image table: a command of this machine for each image name."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any


class BadTableError(Exception):
    """An entry of the image table is invalid; the message names the entry."""


class UnknownImageError(Exception):
    """The image table has no entry; the message says how to add one."""


@dataclass(frozen=True, slots=True)
class Image:
    """The local program that replaces an image."""

    command: tuple[str, ...]
    """Its entry point."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Path in the image, and the file or directory of this machine that appears there."""
    layout: str = ""
    """Directory of an OCI layout, from which image volumes are unpacked."""


Table = Mapping[str, Image]


def default_table(python: str) -> dict[str, Image]:
    """Return the default table: Shoal's images and ``python`` itself."""
    modules = ("shoal_proxy", "shoal_runtime", "shoal_operator")
    entries = {n.replace("_", "/"): Image((python, "-m", n), env=(("PYTHONUNBUFFERED", "1"),)) for n in modules}
    return {**entries, "python": Image((), (python,))}


def parse_table(document: Mapping[str, Any]) -> dict[str, Image]:
    """Parse ``{name: {command: [], args: [], env: {}, workingDir: "...", files: {path: source}, layout: DIR}}``.

    Raises BadTableError: an entry has another form.
    """
    known = {"command", "args", "env", "workingDir", "files", "layout"}
    table = {}
    for name, entry in document.items():
        # An unknown key is most likely misspelled.
        if not isinstance(entry, dict) or not set(entry) <= known:
            raise BadTableError(f"image {name!r}: expected a mapping of {', '.join(sorted(known))}")
        for part in ("command", "args"):
            if not isinstance(entry.get(part, []), list):
                raise BadTableError(f"image {name!r}: {part} must be a list, not {entry[part]!r}")
        for part in ("env", "files"):
            # `env:` without a value is null in YAML.
            if not isinstance(entry.get(part) or {}, dict):
                raise BadTableError(f"image {name!r}: {part} must be a mapping, not {entry[part]!r}")
        table[name] = Image(
            command=tuple(map(str, entry.get("command", []))),
            args=tuple(map(str, entry.get("args", []))),
            env=tuple((str(k), str(v)) for k, v in (entry.get("env") or {}).items()),
            working_dir=str(entry.get("workingDir", "")),
            files=tuple((str(k), str(v)) for k, v in (entry.get("files") or {}).items()),
            layout=str(entry.get("layout", "")),
        )
    return table


def with_files(table: Table, name: str, files: Mapping[str, str]) -> dict[str, Image]:
    """Return the table with files added to the image ``name``."""
    return {**table, name: replace(table[name], files=(*table[name].files, *files.items()))} if files else dict(table)


def find_image(name: str, table: Table, where: str) -> Image:
    """Return the table's entry for an image name.

    The keys tried are: the whole name, the name without tag, its last two parts, its last part. ``where`` is the file
    for additional entries, which the error names.

    Raises UnknownImageError: there is no entry.
    """
    untagged = name.partition("@")[0]
    # A colon before a slash belongs to the registry's port.
    head, colon, tag = untagged.rpartition(":")
    repository = head if colon and "/" not in tag else untagged
    parts = repository.split("/")
    for candidate in (name, repository, "/".join(parts[-2:]), parts[-1]):
        if candidate in table:
            return table[candidate]
    last = repository.rpartition("/")[2]
    raise UnknownImageError(
        f'image "{name}" is not known on this machine: containers run as processes here, so an '
        f"image needs a command. Add '{last}: {{command: [\"/path/to/program\"]}}' to {where}"
    )


def find_layout(name: str, table: Table, where: str) -> str:
    """Return the directory of an image's OCI layout. Raises UnknownImageError: there is none."""
    with suppress(UnknownImageError):
        if found := find_image(name, table, where).layout:
            return found
    last = name.partition("@")[0].rpartition("/")[2].partition(":")[0]
    raise UnknownImageError(
        f'image "{name}" of a volume is not known on this machine. Make a layout with '
        f"`skopeo copy docker://{name} oci:DIR`, and add '{last}: {{layout: DIR}}' to {where}"
    )


def command_line(image: Image, command: list[str], args: list[str]) -> list[str]:
    """Return the command line of a container.

    ``command`` replaces the image's command and arguments; ``args`` replaces the image's arguments only.
    """
    if command:
        return [*command, *args]
    return [*image.command, *(args or image.args)]
