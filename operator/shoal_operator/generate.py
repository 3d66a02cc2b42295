"""Write what is generated from the model: the CRD, the chart's copy of it, the reference page.

Run by ``make crds`` from the root of the repository.
"""

from pathlib import Path

import yaml

from shoal_operator.api import GROUP, PLURAL
from shoal_operator.api.crd import custom_resource_definition
from shoal_operator.api.reference import reference_page

_HEADER = "# Generated from operator/shoal_operator/api by `make crds`; edits are lost.\n"


class _Plain(yaml.SafeDumper):
    """YAML without anchors: what two fields share is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def generated_files() -> dict[str, str]:
    """Return path below the repository -> text."""
    text = yaml.dump(custom_resource_definition(), Dumper=_Plain, sort_keys=False, width=100)
    name = f"{GROUP}_{PLURAL}.yaml"
    return {
        f"crds/{name}": _HEADER + text,
        f"charts/shoal/files/{name}": _HEADER + text,
        "docs/reference.md": reference_page(),
    }


def main() -> None:
    """Write the files below the current folder."""
    for path, text in generated_files().items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
