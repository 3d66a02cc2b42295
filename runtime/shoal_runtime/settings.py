"""The runtime's settings: the environment, read once.

Each field says which variable it comes from, its default as one would write it, how it is parsed
and what it means; `python -m shoal_runtime --help` prints just that.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from shoal_runtime.errors import SettingsError
from shoal_runtime.logs import LEVELS, log_level
from shoal_runtime.misspelt import misspelt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIB = 1024 * 1024
GIB = 1024 * MIB

NAME = re.compile(r"[A-Za-z0-9._-]+")


class Format(StrEnum):
    """How a model is stored."""

    AUTO = "Auto"
    TORCH_EXPORT = "TorchExport"
    TORCH_SCRIPT = "TorchScript"
    SAFETENSORS = "Safetensors"
    HANDLER = "Handler"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a unix socket's path, or host and port."""

    path: str | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(text: str) -> Address:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError
    return Address(host=host.strip("[]"), port=int(port))


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


def _seconds(low: float, high: float, *, above: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high or (above and value == low):
            raise ValueError
        return value

    return parse


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _pattern(expression: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(expression, text):
            raise ValueError
        return text

    return parse


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
        raise ValueError
    return sizes


def _object(text: str) -> dict[str, Any]:
    value = orjson.loads(text)
    if not isinstance(value, dict):
        raise TypeError
    return value


def _cache_dir() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A container may run as a user without a home.
    base = Path(home) if os.path.isabs(home) else Path(tempfile.gettempdir())
    return base / "shoal"


def _setting(variable: str, parse: Callable[[str], Any], allowed: str, *, default: Any = None, text: str) -> Any:
    required = default is _REQUIRED
    metadata = {
        "variable": variable,
        "parse": parse,
        "allowed": allowed,
        "text": text,
        "required": required,
    }
    if required:
        return field(metadata=metadata)
    if callable(default) or isinstance(default, dict):
        return field(
            default_factory=default if callable(default) else lambda: dict(default),
            metadata=metadata,
        )
    return field(default=default, metadata=metadata)


_REQUIRED = object()
_NAME = NAME.pattern
_HANDLER = r"[^\s:]+:[A-Za-z_]\w*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the environment says; see docs/contracts.md, section 3."""

    listen: Address = _setting(
        "SHOAL_RUNTIME_LISTEN",
        _address,
        "unix:PATH or HOST:PORT",
        default=Address(path="/run/shoal/runtime.sock"),
        text="where to listen",
    )
    model_uri: str = _setting(
        "SHOAL_MODEL_URI",
        str,
        "a path, or file://, http:// or https://",
        default=_REQUIRED,
        text="the model: a directory, a file or an archive",
    )
    model_name: str | None = _setting(
        "SHOAL_MODEL_NAME",
        _pattern(_NAME),
        _NAME,
        text="default: what model.toml or the directory says",
    )
    log_level: str = _setting(
        "SHOAL_LOG_LEVEL", log_level, ", ".join(LEVELS), default="INFO", text="what is less important is not logged"
    )
    model_version: str = _setting(
        "SHOAL_MODEL_VERSION", _pattern(_NAME), _NAME, default="1", text="the model's version"
    )
    model_checksum: str | None = _setting(
        "SHOAL_MODEL_CHECKSUM",
        _pattern(r"sha256:[0-9a-fA-F]{64}"),
        "sha256: and 64 hex digits",
        text="of the downloaded or named file",
    )
    cache_dir: Path = _setting(
        "SHOAL_MODEL_CACHE_DIR",
        Path,
        "a directory",
        default=_cache_dir,
        text="where downloads are kept",
    )
    model_format: Format = _setting(
        "SHOAL_MODEL_FORMAT",
        Format,
        ", ".join(Format),
        default=Format.AUTO,
        text="how the model is stored",
    )
    model_handler: str | None = _setting(
        "SHOAL_MODEL_HANDLER",
        _pattern(_HANDLER),
        "package.module:Class or path.py:Class",
        text="the model's class; default: what model.toml says",
    )
    model_parameters: Mapping[str, Any] = _setting(
        "SHOAL_MODEL_PARAMETERS",
        _object,
        "a JSON object",
        default={},
        text="laid over [parameters] of model.toml",
    )
    allow_pickle: bool = _setting(
        "SHOAL_MODEL_ALLOW_PICKLE",
        _boolean,
        "true or false",
        default=False,
        text="load pickles, which can run any code",
    )
    model_max_bytes: int = _setting(
        "SHOAL_MODEL_MAX_BYTES",
        _number(MIB, 1024 * 1024 * GIB),
        "1048576 to 1125899906842624 bytes",
        default=128 * GIB,
        text="of a download, and of all that an archive holds",
    )
    model_max_files: int = _setting(
        "SHOAL_MODEL_MAX_FILES",
        _number(1, 10_000_000),
        "1 to 10000000",
        default=100_000,
        text="files and folders in an archive",
    )
    model_max_ratio: int = _setting(
        "SHOAL_MODEL_MAX_RATIO",
        _number(1, 100_000),
        "1 to 100000",
        default=100,
        text="bytes unpacked for each byte of an archive, from 64 MiB on",
    )
    fetch_timeout_s: float = _setting(
        "SHOAL_MODEL_FETCH_TIMEOUT_S",
        _seconds(0, 86_400, above=True),
        "more than 0, up to 86400 seconds",
        default=3600.0,
        text="download, check and unpack the model within this (else exit 3)",
    )
    load_timeout_s: float = _setting(
        "SHOAL_MODEL_LOAD_TIMEOUT_S",
        _seconds(0, 86_400, above=True),
        "more than 0, up to 86400 seconds",
        default=1800.0,
        text="load and warm the model within this (else exit 3)",
    )
    max_batch_size: int = _setting(
        "SHOAL_BATCHING_MAX_BATCH_SIZE",
        _number(1, 65536),
        "1 to 65536 rows",
        default=32,
        text="rows in one call",
    )
    allowed_batch_sizes: tuple[int, ...] = _setting(
        "SHOAL_BATCHING_ALLOWED_BATCH_SIZES",
        _sizes,
        "increasing numbers, the last being the maximum batch size",
        default=(),
        text="row counts batches are padded to; default: any on CPU, powers of two on CUDA",
    )
    device: str = _setting(
        "SHOAL_RUNTIME_DEVICE",
        lambda text: _pattern(r"auto|cpu|cuda(:\d+)?")(text.lower()),
        "auto, cpu, cuda or cuda:N",
        default="auto",
        text="auto takes CUDA when there is one",
    )
    dtype: str = _setting(
        "SHOAL_RUNTIME_DTYPE",
        lambda text: _pattern("auto|float32|bfloat16|float16")(text.lower()),
        "auto, float32, bfloat16 or float16",
        default="auto",
        text="auto keeps the model's own",
    )
    compile: bool = _setting(
        "SHOAL_RUNTIME_COMPILE",
        _boolean,
        "true or false",
        default=False,
        text="run forward through torch.compile",
    )
    threads: int | None = _setting(
        "SHOAL_RUNTIME_THREADS",
        _number(1, 1024),
        "1 to 1024",
        text="torch's intra-op CPU threads; default: torch's own choice, at most the container's CPU limit",
    )
    preprocess_threads: int = _setting(
        "SHOAL_RUNTIME_PREPROCESS_THREADS",
        _number(1, 256),
        "1 to 256",
        default=2,
        text="threads for preprocess and postprocess",
    )
    forward_timeout_s: float = _setting(
        "SHOAL_RUNTIME_FORWARD_TIMEOUT_S",
        _seconds(0, 3600, above=True),
        "more than 0, up to 3600 seconds",
        default=60.0,
        text="a forward that takes longer ends the process (exit 4)",
    )
    max_body_bytes: int = _setting(
        "SHOAL_RUNTIME_MAX_BODY_BYTES",
        _number(1024, 1024 * GIB),
        "1024 to 1099511627776 bytes",
        default=GIB,
        text="longest infer body",
    )
    max_head_bytes: int = _setting(
        "SHOAL_RUNTIME_MAX_HEAD_BYTES",
        _number(1024, 16 * MIB),
        "1024 to 16777216 bytes",
        default=32 * 1024,
        text="longest request line and headers, each header counted with 32 bytes more",
    )
    head_timeout_s: float = _setting(
        "SHOAL_RUNTIME_HEAD_TIMEOUT_S",
        _seconds(0, 3600, above=True),
        "more than 0, up to 3600 seconds",
        default=30.0,
        text="for a head, from the connection's start or from its own first byte",
    )
    transfer_timeout_s: float = _setting(
        "SHOAL_RUNTIME_TRANSFER_TIMEOUT_S",
        _seconds(0, 3600, above=True),
        "more than 0, up to 3600 seconds",
        default=60.0,
        text="for a body or an answer that moves more slowly than the rate below",
    )
    min_bytes_per_s: int = _setting(
        "SHOAL_RUNTIME_MIN_BYTES_PER_S",
        _number(1, 1024 * GIB),
        "1 to 1099511627776 bytes a second",
        default=16 * 1024,
        text="at this rate bodies and answers may move for as long as it takes",
    )
    shutdown_timeout_s: float = _setting(
        "SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S",
        _seconds(0, 3600, above=False),
        "0 to 3600 seconds",
        default=60.0,
        text="on SIGTERM, how long to wait for open connections",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings that `environ` holds; an empty value means the default.

        Raises:
            SettingsError: names every variable that is missing, misspelt, or out of range, with its value.
        """
        values: dict[str, Any] = {}
        faults = misspelt(environ, "runtime", {each.metadata["variable"] for each in fields(cls)})
        for each in fields(cls):
            meta = each.metadata
            text = environ.get(meta["variable"], "")
            if text == "":
                if meta["required"]:
                    faults.append(f"{meta['variable']} is required: {meta['allowed']}")
                continue
            try:
                values[each.name] = meta["parse"](text)
            except (ValueError, TypeError, KeyError):
                faults.append(f"{meta['variable']} must be {meta['allowed']}, not {text!r}")
        if faults:
            raise SettingsError("; ".join(faults))
        return _checked(cls(**values))


def _checked(settings: Settings) -> Settings:
    sizes = settings.allowed_batch_sizes
    if sizes and sizes[-1] != settings.max_batch_size:
        raise SettingsError(
            f"the last of SHOAL_BATCHING_ALLOWED_BATCH_SIZES must be SHOAL_BATCHING_MAX_BATCH_SIZE,"
            f" {settings.max_batch_size}, not {sizes[-1]}"
        )
    return settings


def help_text() -> str:
    """Return what `--help` prints: every variable, its range, its default and what it is for."""
    lines = [
        "usage: python -m shoal_runtime [fetch]",
        "",
        "fetch: only bring the model into the cache",
        "",
        "Settings come from the environment:",
        "",
    ]
    for each in fields(Settings):
        meta = each.metadata
        lines.append(f"  {meta['variable']}")
        lines.append(f"      {meta['text']}")
        lines.append(f"      {meta['allowed']}{_default_text(each.default, required=meta['required'])}")
    return "\n".join(lines)


def _default_text(default: Any, *, required: bool) -> str:
    if required:
        return "; required"
    shown = isinstance(default, str | int | float | Address) and default != ""
    if not shown:
        return ""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"; default {text}"
