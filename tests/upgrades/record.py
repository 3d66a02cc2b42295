"""Note the definitions of this commit beside the earlier ones, under the version's name.

RELEASING.md runs it, from the root of the repository: ``python -m tests.upgrades.record``.
"""

import json

import jsonpatch

from shoal_schema.version import VERSION
from tests.upgrades.recorded import DEFINITIONS, FOLDER, Recorded, present, recorded


def line_of(name: str, definition: Recorded, earlier: tuple[Recorded, ...]) -> str | None:
    """Return the line that notes a definition as a patch of the nearest earlier one; None: it is noted already."""
    if any(each.spec == definition.spec for each in earlier):
        return None
    patches = {each.name: jsonpatch.make_patch(each.spec, definition.spec).patch for each in earlier}
    base = min(patches, key=lambda each: len(json.dumps(patches[each])))
    return json.dumps({"name": name, "base": base, "patch": patches[base]}, separators=(",", ":"))


def main() -> None:
    """Append what is not noted yet."""
    for plural in DEFINITIONS:
        if line := line_of(VERSION, present(plural), recorded(plural)):
            with (FOLDER / "definitions" / f"{plural}.jsonl").open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
