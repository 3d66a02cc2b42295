"""All kinds that are served now: the table of built-in ones and those that definitions add."""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal_local.apiserver.errors import no_such_path
from shoal_local.apiserver.kinds.builtin import BUILTIN
from shoal_local.apiserver.kinds.custom import resources_of
from shoal_local.apiserver.kinds.resource import Object, Resource

CRDS = "apiextensions.k8s.io/customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class Registry:
    """Kinds by group, version and plural."""

    resources: dict[tuple[str, str, str], Resource]

    @classmethod
    def of(cls, definitions: Iterable[Object]) -> "Registry":
        """Return the built-in kinds and those of the given CustomResourceDefinitions."""
        custom = [resource for crd in definitions for resource in resources_of(crd)]
        return cls({(r.group, r.version, r.plural): r for r in (*BUILTIN, *custom)})

    def find(self, group: str, version: str, plural: str) -> Resource:
        """Return the kind.

        Raises:
            ApiError: 404, it is not served.
        """
        try:
            return self.resources[group, version, plural]
        except KeyError:
            raise no_such_path() from None

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of ``apps/v1`` and ``Deployment``, as an owner reference names it."""
        return next((r for r in self.resources.values() if r.kind == kind and r.api_version == api_version), None)

    def in_version(self, group: str, version: str) -> list[Resource]:
        """Return the kinds of one group version, by plural."""
        found = [r for r in self.resources.values() if (r.group, r.version) == (group, version)]
        return sorted(found, key=lambda r: r.plural)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Return versions by group, the preferred version first; the core group is ''."""
        found: dict[str, list[str]] = {}
        for group, version, _ in self.resources:
            if version not in found.setdefault(group, []):
                found[group].append(version)
        return found

    @property
    def stored(self) -> dict[str, Resource]:
        """Return one resource for each storage key."""
        return {r.key: r for r in reversed(self.resources.values()) if "list" in r.verbs}
