"""A contract type of import-linter: cores do no I/O and import no shell.

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


class CoresContract(Contract):
    """Shells and cores of packages."""

    packages = PackagesField()
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def validate(self) -> None:
        """Build the contracts: the layers of each package, and the imports of all cores."""
        packages: dict[str, list[list[str]]] = self.packages  # type: ignore[assignment]
        self._parts: list[Contract] = [
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
        options = {"source_modules": sources, "forbidden_modules": IO, "allow_indirect_imports": "True"}
        self._parts.append(ForbiddenContract("cores", self.session_options, options))

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
