"""Contract types of import-linter: libraries of one component, and cores that do no I/O and import no shell.

Each component, and each package in it that mixes both, lists all its modules in layers: shells, then cores. A layer
imports only the layers below it. Both lists are in ``pyproject.toml``.
"""

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields
from importlinter.application.contract_utils import AlertLevel, remove_ignored_imports_and_report
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

# Files, network, processes, threads, clocks, unseeded random numbers, and logs.
IO = [
    "aiohttp", "asyncio", "concurrent", "ctypes", "datetime", "faulthandler", "fcntl", "httpcore", "httpx", "io",
    "kopf", "kubernetes", "logging", "os", "pathlib", "prometheus_client", "random", "requests", "secrets", "shutil",
    "signal", "socket", "ssl", "starlette", "subprocess", "sys", "tempfile", "threading", "time", "tqdm", "uuid",
    "uvicorn",
]  # fmt: skip


class PackagesField(fields.Field[dict[str, list[list[str]]]]):
    """The layers of each package: ``{package: [shells, cores]}``."""

    def parse(self, raw_data: Any) -> dict[str, list[list[str]]]:
        """Return the table."""
        wrong = sorted(package for package, layers in raw_data.items() if len(layers) != 2)
        if wrong:
            raise fields.ValidationError(f"Expected a list of shells and a list of cores: {', '.join(wrong)}.")
        return dict(raw_data)


class PartsContract(Contract):
    """A contract that consists of others, which ``validate`` builds."""

    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)
    _parts: list[Contract]

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Check all contracts."""
        removed = remove_ignored_imports_and_report(graph, self.ignore_imports, AlertLevel.ERROR)  # type: ignore[arg-type]
        checks = [part.check(graph, verbose) for part in self._parts]
        return ContractCheck(
            kept=all(each.kept for each in checks),
            metadata={"checks": checks},
            ignored_import_count=removed.ignored_import_count,
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that break a contract."""
        for part, each in zip(self._parts, check.metadata["checks"], strict=True):
            if not each.kept:
                part.render_broken_contract(each)

    def forbid(self, sources: list[str], modules: list[str], *, indirect: bool) -> Contract:
        """Return the contract that no source imports one of the modules; ``indirect``: nor through another module."""
        options = {
            "source_modules": sources,
            "forbidden_modules": modules,
            "allow_indirect_imports": str(not indirect),
        }
        return ForbiddenContract(", ".join(modules), self.session_options, options)


class TableField(fields.Field[dict[str, Any]]):
    """A table of TOML."""

    def parse(self, raw_data: Any) -> dict[str, Any]:
        """Return the table."""
        return dict(raw_data)


class LibrariesContract(PartsContract):
    """Libraries that one component imports, and libraries that a component does not import."""

    only = TableField()
    never = TableField()

    def validate(self) -> None:
        """Build a contract for each library, and for each component."""
        only: dict[str, str] = self.only  # type: ignore[assignment]
        never: dict[str, list[str]] = self.never  # type: ignore[assignment]
        components = self.session_options["root_packages"]
        self._parts = [
            self.forbid([each for each in components if each != owner], [library], indirect=True)
            for library, owner in only.items()
        ]
        self._parts += [self.forbid([component], modules, indirect=False) for component, modules in never.items()]


class CoresContract(PartsContract):
    """Shells and cores of packages."""

    packages = PackagesField()

    def validate(self) -> None:
        """Build the contracts: the layers of each package, and the imports of all cores."""
        packages: dict[str, list[list[str]]] = self.packages  # type: ignore[assignment]
        self._parts = [
            LayersContract(
                package,
                self.session_options,
                {"containers": [package], "layers": [*shells, *cores], "exhaustive": "True"},
            )
            for package, (shells, cores) in packages.items()
        ]
        sources = [
            f"{package}.{module.strip(' ()')}"
            for package, (_, cores) in packages.items()
            for layer in cores
            for module in layer.split(":")
        ]
        # Only direct imports count: libraries (numpy, orjson) may use I/O.
        self._parts.append(self.forbid(sources, IO, indirect=False))
