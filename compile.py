"""Build hook: compiles the hot path of proxy and runtime to C extensions with mypyc.

A wheel is pure Python unless ``SHOAL_COMPILE=1``, as in a release and in the images. Compiling takes four minutes on
two cores and fails without a C compiler and Python's headers. A compiled wheel behaves the same and needs two thirds of
the processor time for a small request.
"""

import os
import re
import shlex
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED: Mapping[str, Sequence[str]] = {
    "shoal_proxy": (
        *(
            f"proxy/shoal_proxy/{name}.py"
            for name in (
                "balance/*", "batching/*", "batching/row_checks/*", "bodies/body", "bodies/body_memory",
                "bodies/compressor", "bodies/decompressor", "codecs/*", "dispatch/dispatcher", "dispatch/exchange",
                "dispatch/link", "dispatch/runtime_connection", "dispatch/unread", "dispatch/unseen_runs",
                "dispatch/upstream", "graph/combining", "graph/graph_request", "graph/link", "graph/steps",
                "graph/values", "http/connection_limits", "http/early_responses", "http/framed_protocol",
                "http/header_cache", "http/idle_connections", "http/inference", "http/job_acceptance", "http/outbox",
                "http/parameters", "http/pending_requests", "http/protocol", "http/timed_protocol",
                "model/*", "observe/log_sampling", "observe/metrics", "observe/timing", "observe/tracer",
                "tracing/*", "activator/protocol",
            )
        ),
        "schema/shoal_schema/expressions/evaluation.py",
        "schema/shoal_schema/wire/*.py",
    ),
    "shoal_runtime": tuple(
        f"runtime/shoal_runtime/{name}.py"
        for name in (
            "batches/padding", "codecs/request", "codecs/response", "execution/pipeline", "handlers/items",
            "handlers/outputs", "handlers/results", "http/body", "http/connection_limits", "http/infer_cycle",
            "http/listening", "http/server", "tensors/numpy_tensors", "tensors/torch_tensors",
        )
    ),
}  # fmt: skip
"""Library -> modules that each request or batch passes; code of startup and errors stays interpreted.

There is one library per process, and one for the wire formats that both share. Missing sources are skipped: an image is
built from the sources of one process.

No compiled module awaits inside `except` or `finally`: in compiled code all coroutines share one record of the
exception being handled, which other coroutines change meanwhile.
"""

SWITCH = "SHOAL_COMPILE"
NEEDED = (
    # mypy needs the types of what compiled modules import. mypyc changes often, so it is pinned.
    "httptools", "msgspec", "mypy==2.4.1", "numpy", "orjson", "prometheus-client", "python-multipart", "setuptools",
    "starlette", "uvicorn>=0.54,<0.55",
)  # fmt: skip


MYPY = """\
[mypy]
explicit_package_bases = true
ignore_missing_imports = true
mypy_path = {root}/proxy:{root}/runtime:{root}/schema
[mypy-torch.*]
follow_imports = skip
"""
"""Configuration of mypy. torch is too large to install for a build and takes minutes to analyze, so it is untyped here;
`make types` checks types.
"""


class Compile(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `COMPILED` and adds the libraries to the wheel, next to their sources."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return the requirements of compilation, if it will happen (hatchling)."""
        return list(NEEDED) if _compiles(os.environ) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extensions (hatchling)."""
        if not _compiles(os.environ):
            return
        if version == "editable":
            raise ValueError("an editable install runs the sources: compiled ones would hide changes to them")
        if why := obstacle():
            raise OSError(f"{SWITCH}=1, and {why}")
        self._folder = tempfile.TemporaryDirectory()
        libraries = build(Path(self.root), Path(self._folder.name))
        build_data["force_include"].update({str(path): str(name) for path, name in libraries.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the build directory, whose libraries are in the wheel (hatchling)."""
        if self._folder is not None:
            self._folder.cleanup()


def _compiles(environ: Mapping[str, str]) -> bool:
    """Return whether SHOAL_COMPILE requires compilation."""
    value = environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, not {value}")
    return value == "1"


def obstacle() -> str | None:
    """Return the reason that this machine cannot compile; None if it can."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not installed (Debian: python3-dev)"
    return None


FREED = re.compile(r"if \(\w+_free_instance == NULL\) \{")
"""Generated code that reuses the last freed object of a class."""


def keep_nothing_freed(folder: Path) -> None:
    """Disable mypyc's reuse of freed frames of coroutines and closures.

    mypyc offers a freed frame for reuse before it has cleared it. Clearing may release the GIL, as destroying a tensor
    does, so that another thread gets the frame and loses what it writes there.

    """
    changed = 0
    for path in folder.rglob("*.c"):
        text, count = FREED.subn("if (0) {", path.read_text())
        path.write_text(text)
        changed += count
    if not changed:
        raise ValueError("mypyc generates the reuse of freed objects in another way: see keep_nothing_freed")


def build(root: Path, folder: Path) -> dict[Path, Path]:
    """Compile into ``folder``; return each library and its path in the wheel."""
    # Imported here: a build without compilation does not install these.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Distribution  # type: ignore[import-untyped]  # noqa: PLC0415

    extensions: list[Any] = []
    config = folder / "mypy.ini"
    config.write_text(MYPY.format(root=root))
    for library, patterns in COMPILED.items():
        sources = [str(path) for pattern in patterns for path in sorted(root.glob(pattern))]
        if not sources:
            continue
        group = library if any(f"/{library}/" in source for source in sources) else "shoal_schema"
        made = folder / group
        extensions += mypycify(
            ["--config-file", str(config), *sources],
            target_dir=str(made),
            group_name=group,
            opt_level="3",
            debug_level="0",
        )
        keep_nothing_freed(made)
    command: Any = Distribution({"name": "shoal", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.parallel = len(COMPILED)
    command.ensure_finalized()
    command.run()
    return {path: path.relative_to(folder / "lib") for path in (folder / "lib").rglob("*.so")}
