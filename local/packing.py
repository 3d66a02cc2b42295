"""Hatchling build hook that packs the Helm chart into wheel and sdist."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Chart(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling build hook that adds the Helm chart to a wheel or sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the chart, except to an editable install, which uses the checkout."""
        root = Path(self.root)
        if version == "editable" or (root / "shoal_local" / "chart").is_dir():
            return
        chart = root.parent / "charts" / "shoal"
        if not (chart / "Chart.yaml").is_file():
            raise FileNotFoundError(f"the Helm chart is not at {chart}. Build from a checkout or an sdist")
        build_data["force_include"][str(chart)] = "shoal_local/chart"
