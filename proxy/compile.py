"""Build hook: the proxy's request path as C extensions, made by mypyc from the same sources.

Off unless ``HATCH_BUILD_HOOKS_ENABLE=1``, because it takes a C compiler and two minutes. What is built so behaves the
same and spends a third less of the processor on a small request; images and benchmarks are built so.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("proxy/shoal_proxy")
COMPILED = (
    "batching/*.py", "codecs/*.py", "edge/*.py", "model/*.py", "body.py", "dispatcher.py", "guarded.py", "heads.py",
    "inference.py", "metrics.py", "protocol.py", "timing.py",
)  # fmt: skip
"""What each request passes; what runs once a batch or once a start stays as it is."""


class Compile(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `COMPILED` and adds the libraries to the wheel, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extensions (hatchling)."""
        if version == "editable":
            raise ValueError("an editable install runs the sources; compiled ones would hide every change made to them")
        self._folder = tempfile.TemporaryDirectory()
        libraries = build(Path(self.root), Path(self._folder.name))
        build_data["force_include"].update({str(path): str(name) for path, name in libraries.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built; it is in the wheel (hatchling)."""
        self._folder.cleanup()


def build(root: Path, folder: Path) -> dict[Path, Path]:
    """Compile into ``folder``; return each library with its place in the wheel."""
    # Only here: a build that does not compile has neither.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Distribution  # type: ignore[import-untyped]  # noqa: PLC0415

    sources = [str(path) for pattern in COMPILED for path in sorted((root / PACKAGE).glob(pattern))]
    extensions = mypycify(sources, target_dir=str(folder / "c"), opt_level="3", debug_level="0")
    command: Any = Distribution({"name": "shoal", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return {path: path.relative_to(folder / "lib") for path in (folder / "lib").rglob("*.so")}
