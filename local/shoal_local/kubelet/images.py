"""The image table: a command of this machine for each image name."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec


class BadTableError(Exception):
    """An entry of the image table is invalid; the message names the entry."""


class UnknownImageError(Exception):
    """The image table has no entry; the message says how to add one."""


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The local program that replaces an image: an entry of the image table."""

    command: list[str] = []
    """Its entry point."""
    args: list[str] = []
    # In YAML, a field without a value is null.
    env: dict[str, str] | None = None
    working_dir: str = ""
    files: dict[str, str] | None = None
    """The file or directory of this machine that appears at each path in the image."""
    layout: str = ""
    """Directory of an OCI layout, from which image volumes are unpacked."""


Table = Mapping[str, Image]


def default_table(python: str, runtime_files: dict[str, str] | None = None) -> dict[str, Image]:
    """Return the default table: Shoal's images, the runtime's with files, and ``python`` itself."""
    files = {"shoal_proxy": None, "shoal_runtime": runtime_files, "shoal_operator": None}
    env = {"PYTHONUNBUFFERED": "1"}
    entries = {n.replace("_", "/"): Image([python, "-m", n], env=env, files=held) for n, held in files.items()}
    return {**entries, "python": Image(args=[python])}


def parse_table(document: Mapping[str, Any]) -> dict[str, Image]:
    """Parse ``{name: {command: [], args: [], env: {}, workingDir: "...", files: {path: source}, layout: DIR}}``.

    Raises BadTableError: an entry has another form.
    """
    table = {}
    for name, entry in document.items():
        try:
            table[name] = msgspec.convert(entry, Image)
        except msgspec.ValidationError as error:
            raise BadTableError(f"image {name!r}: {error}") from None
    return table


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
    raise UnknownImageError(
        f'image "{name}" is not known on this machine: containers run as processes here, so an '
        f"image needs a command. Add '{parts[-1]}: {{command: [\"/path/to/program\"]}}' to {where}"
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
