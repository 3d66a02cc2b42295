"""The table that stands in for a registry. An image's name to the command that is its content here."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any


class BadTableError(Exception):
    """A table has an entry that says nothing; the message names it and what is expected."""


class UnknownImageError(Exception):
    """No entry has this image; the message says how to add one."""


@dataclass(frozen=True, slots=True)
class Image:
    """What runs in the place of an image."""

    command: tuple[str, ...]
    """Its entry point."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """What it holds: a path in the image, and the file or directory of this machine that is there."""
    layout: str = ""
    """The directory of an OCI layout, from which a volume gets the image's files."""


Table = Mapping[str, Image]


def default_table(python: str) -> dict[str, Image]:
    """Return our own images, and plain Python. ``python`` is the interpreter that has our packages."""
    modules = ("shoal_proxy", "shoal_runtime", "shoal_operator")
    ours = {name.replace("_", "/"): Image((python, "-m", name), env=(("PYTHONUNBUFFERED", "1"),)) for name in modules}
    return {**ours, "python": Image((), (python,))}


def parse_table(document: Mapping[str, Any]) -> dict[str, Image]:
    """Read ``{name: {command: [], args: [], env: {}, workingDir: "...", files: {path: source}, layout: DIR}}``.

    Raises BadTableError: an entry is not of that form.
    """
    return {name: _image(name, entry) for name, entry in document.items()}


def _image(name: str, entry: Any) -> Image:
    known = {"command", "args", "env", "workingDir", "files", "layout"}
    if not isinstance(entry, dict) or not set(entry) <= known:
        raise BadTableError(f"image {name!r}: expected a mapping of {', '.join(sorted(known))}")
    for part in ("command", "args"):
        if not isinstance(entry.get(part, []), list):
            raise BadTableError(f"image {name!r}: {part} must be a list, not {entry[part]!r}")
    for part in ("env", "files"):
        if not isinstance(entry.get(part) or {}, dict):
            raise BadTableError(f"image {name!r}: {part} must be a mapping, not {entry[part]!r}")
    return Image(
        command=tuple(map(str, entry.get("command", []))),
        args=tuple(map(str, entry.get("args", []))),
        env=tuple((str(k), str(v)) for k, v in (entry.get("env") or {}).items()),
        working_dir=str(entry.get("workingDir", "")),
        files=tuple((str(k), str(v)) for k, v in (entry.get("files") or {}).items()),
        layout=str(entry.get("layout", "")),
    )


def with_files(table: Table, name: str, files: Mapping[str, str]) -> dict[str, Image]:
    """Return the table with more files in one of its images."""
    return {**table, name: replace(table[name], files=(*table[name].files, *files.items()))} if files else dict(table)


def find_image(name: str, table: Table, where: str) -> Image:
    """Return the entry for an image.

    An entry of the whole name goes first, then one without the tag, then one of the last part. ``where`` is the file
    that a user can add to. Raises UnknownImageError: there is none.
    """
    untagged = name.partition("@")[0]
    head, colon, tag = untagged.rpartition(":")
    repository = head if colon and "/" not in tag else untagged
    parts = repository.split("/")
    for candidate in (name, repository, "/".join(parts[-2:]), parts[-1]):
        if candidate in table:
            return table[candidate]
    last = repository.rpartition("/")[2]
    raise UnknownImageError(
        f'image "{name}" is not known on this machine: containers run as processes here, so an '
        f"image needs a command; add '{last}: {{command: [\"/path/to/program\"]}}' to {where}"
    )


def find_layout(name: str, table: Table, where: str) -> str:
    """Return the directory of the layout that an image's files are in. Raises UnknownImageError: there is none."""
    with suppress(UnknownImageError):
        if found := find_image(name, table, where).layout:
            return found
    last = name.partition("@")[0].rpartition("/")[2].partition(":")[0]
    raise UnknownImageError(
        f'image "{name}" of a volume is not known on this machine: `skopeo copy docker://{name} oci:DIR` makes a layout'
        f" of it; add '{last}: {{layout: DIR}}' to {where}"
    )


def command_line(image: Image, command: list[str], args: list[str]) -> list[str]:
    """Return what to run.

    The container's command replaces the image's command and arguments, its args the arguments.
    """
    if command:
        return [*command, *args]
    return [*image.command, *(args or image.args)]
