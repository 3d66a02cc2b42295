"""Build hook: the Helm chart, which lies outside this directory, goes into wheel and sdist as ``shoal_local/chart``."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Chart(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the Helm chart to a wheel, unless the package already contains it (in an unpacked sdist)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the chart, except for an editable install, which uses the checkout (hatchling)."""
        root = Path(self.root)
        if version == "editable" or (root / "shoal_local" / "chart").is_dir():
            return
        chart = root.parent / "charts" / "shoal"
        if not (chart / "Chart.yaml").is_file():
            raise FileNotFoundError(f"the Helm chart is not at {chart}. Build from a checkout or an sdist")
        build_data["force_include"][str(chart)] = "shoal_local/chart"
