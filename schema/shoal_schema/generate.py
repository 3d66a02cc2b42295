"""Write the generated files: CRDs, the copies of the chart, reference pages, tables, version, publisher.

Run by ``make generated`` from the root of the repository.
"""

from pathlib import Path

import yaml

from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import Definition, custom_resource_definition, services
from shoal_schema.publishing.graph import graphs
from shoal_schema.publishing.publisher import Publisher, published_files
from shoal_schema.publishing.reference import reference_page
from shoal_schema.publishing.tables import filled
from shoal_schema.publishing.versions import VERSIONED, versioned
from shoal_schema.resource import GROUP

_HEADER = "# Generated from schema/shoal_schema/resource by `make generated`; edits are lost.\n"
PAGES = (
    "docs/reference/settings.md",
    "docs/reference/metrics.md",
    "docs/reference/serve-fields.md",
    "docs/reference/policy.md",
    "docs/reference/operator-settings.md",
)
"""Pages with generated tables."""


class _Plain(yaml.SafeDumper):
    """YAML dumper without anchors: shared values are repeated."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def generated_files(root: Path) -> dict[str, str]:
    """Return the generated files: path in the repository -> text."""
    # Files that are generated in part keep the rest of their text.
    pages = {page: filled((root / page).read_text(encoding="utf-8")) for page in PAGES}
    versions = {path: versioned(path, (root / path).read_text(encoding="utf-8")) for path in VERSIONED}
    made = {
        **_definition(services()),
        **_definition(graphs()),
        **_definition(batches()),
        "docs/reference/fields.md": reference_page(),
        **pages,
        **versions,
    }
    return {**made, **dict(published_files(root, Publisher.of(root), made))}


def _definition(definition: Definition) -> dict[str, str]:
    text = _HEADER + yaml.dump(custom_resource_definition(definition), Dumper=_Plain, sort_keys=False, width=100)
    # The chart installs its own copy.
    return {f"{directory}/{GROUP}_{definition.plural}.yaml": text for directory in ("crds", "charts/shoal/files")}


def main() -> None:
    """Write the generated files below the current directory."""
    for path, text in generated_files(Path()).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
