"""Build hook: the path of a request, in proxy and runtime, as C extensions, made by mypyc from the same sources.

A wheel is built so where there is a C compiler with Python's headers; it takes two minutes, behaves the same and spends
half of the processor on a small request. Elsewhere the wheel is pure Python, and a line says so. ``SHOAL_COMPILE=1``
insists, ``SHOAL_COMPILE=0`` forbids. An editable install always runs the sources.
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
                "balance/*", "batching/*", "codecs/*", "edge/*", "graph/combining", "graph/conditions", "graph/frame",
                "graph/link", "graph/steps", "graph/values", "model/*", "body", "connected", "connection",
                "dispatcher", "exchange", "guard", "guarded", "header_cache", "inference", "link", "metrics",
                "outbox", "protocol", "timing", "tracer", "tracing/*", "unsent", "upstream", "waiting/protocol",
            )
        ),
        "schema/shoal_schema/wire/*.py",
    ),
    "shoal_runtime": tuple(
        f"runtime/shoal_runtime/{name}.py"
        for name in (
            "batches/padding", "body", "codecs/request", "codecs/response", "guarding", "handlers/answers",
            "handlers/items", "handlers/results", "infer_cycle", "listening", "pipeline", "server",
            "tensors/numpy_tensors", "tensors/torch_tensors",
        )
    ),
}  # fmt: skip
"""By library, what each request or each batch passes; what runs once a start, or where something failed, stays so.

One library for each process: neither loads the other's, but for what both do alike with bytes. What is not there is not
compiled: an image is built from the sources of one process.

None of it awaits while it handles an exception (`except`, `finally`): in compiled code all coroutines share one note of
which exception is being handled, and those of others get into it meanwhile.
"""

SWITCH = "SHOAL_COMPILE"
NEEDED = (
    # What the compiled modules import tells mypy their types. mypyc is young: pinned.
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
"""torch is too large to be fetched for this, and takes minutes to be read where it is here: what it gives has no type.

Whether types are right is for `make types` to say.
"""


class Compile(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `COMPILED` and adds the libraries to the wheel, beside their sources."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return what compiling takes, if it is going to happen (hatchling)."""
        insists = _choice(os.environ)
        return list(NEEDED) if insists or (insists is None and obstacle() is None) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extensions (hatchling)."""
        insists = _choice(os.environ)
        if version == "editable":
            if insists:
                raise ValueError("an editable install runs the sources; compiled ones would hide every change to them")
            return
        if insists is False:
            return
        if why := obstacle():
            if insists:
                raise OSError(f"{SWITCH}=1, and {why}")
            self._say_pure(why)
            return
        try:
            self._compile(build_data)
        except (Exception, SystemExit) as error:  # mypyc exits where a type is wrong
            if insists:
                raise
            self._say_pure(f"compiling failed ({type(error).__name__}: {error})")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built; it is in the wheel (hatchling)."""
        if self._folder is not None:
            self._folder.cleanup()

    def _compile(self, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        libraries = build(Path(self.root), Path(self._folder.name))
        build_data["force_include"].update({str(path): str(name) for path, name in libraries.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _say_pure(self, why: str) -> None:
        self.app.display_warning(f"{why}: proxy and runtime stay pure Python, at twice the processor time a request")


def _choice(environ: Mapping[str, str]) -> bool | None:
    """Return what SHOAL_COMPILE asks for; None leaves it to what is here."""
    value = environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 0 or 1, not {value}")
    return value == "1" if value else None


def obstacle() -> str | None:
    """Return what this machine lacks for compiling; None if nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not here (Debian: python3-dev)"
    return None


FREED = re.compile(r"if \(\w+_free_instance == NULL\) \{")
"""Where a class of mypyc keeps its last freed object for the next one."""


def keep_nothing_freed(folder: Path) -> None:
    """Let no frame of a coroutine or closure be used again that is not yet empty.

    mypyc hands a freed frame out again before it has cleared it. Clearing may let another thread run, a tensor's end
    does: that one then takes the frame, and loses what it writes there.
    """
    changed = 0
    for path in folder.rglob("*.c"):
        text, count = FREED.subn("if (0) {", path.read_text())
        path.write_text(text)
        changed += count
    if not changed:
        raise ValueError("mypyc writes what it keeps of freed objects in another way: see keep_nothing_freed")


def build(root: Path, folder: Path) -> dict[Path, Path]:
    """Compile into ``folder``; return each library with its place in the wheel."""
    # Only here: a build that does not compile has neither.
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
