"""The proxy's settings, read once from the environment. The table of names is docs/contracts.md, section 3."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

import orjson

from shoal_proxy.batching.padding import FACTOR
from shoal_proxy.batching.policy import Policy
from shoal_proxy.logs import LEVELS, log_level
from shoal_proxy.misspelt import misspelt

KIB, MIB = 1024, 1024**2
TIB = 1024**4


class SettingsError(ValueError):
    """A setting is out of range; the message gives key, allowed range and actual value."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: a unix socket's ``path``, or ``host`` and ``port``."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(text: str) -> Address:
    if text.startswith("unix:") and len(text) > 5:
        return Address(path=text[5:])
    match = re.fullmatch(r"(?:http://)?(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]*)):([0-9]{1,5})/?", text)
    if not match or int(match[3]) > 65535:
        raise ValueError
    return Address(match[1] or match[2] or "0.0.0.0", int(match[3]))


def _tcp_address(text: str) -> Address:
    address = _address(text)
    if address.path:
        raise ValueError
    return address


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", text):
        raise ValueError
    return text


def _host_names(text: str) -> tuple[str, ...]:
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if not all(name == "*" or re.fullmatch(r"[a-z0-9._-]+", name) for name in names):
        raise ValueError
    return tuple(sorted(names))


# What a connection or a body says about itself, and what the proxy tells the runtime on its own account.
_OWN_HEADERS = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te", "trailer",
    "transfer-encoding", "upgrade", "inference-header-content-length", "x-request-timeout-ms",
})  # fmt: skip


def _header_names(text: str) -> tuple[bytes, ...]:
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if names & _OWN_HEADERS or not all(re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", name) for name in names):
        raise ValueError
    return tuple(sorted(name.encode("ascii") for name in names))


def _setting(
    env: str,
    default: Any,
    parse: Callable[[str], Any],
    allowed: str,
    *,
    within: tuple[float, float] | None = None,
) -> Any:
    metadata = {"env": env, "parse": parse, "allowed": allowed, "within": within}
    return field(default=default, metadata=metadata)


def _number(env: str, default: float, low: float, high: float) -> Any:
    parse = int if isinstance(default, int) else float
    return _setting(env, default, parse, f"{low} to {high}", within=(low, high))


def _duration(env: str, default: float, longest: int) -> Any:
    return _setting(env, default, float, f"more than 0 to {longest}", within=(_ABOVE_ZERO, longest))


def _choice(env: str, default: StrEnum) -> Any:
    kind = type(default)
    names = {str(choice).lower(): choice for choice in kind}

    def parse(text: str) -> StrEnum:
        if text.lower() not in names:
            raise ValueError
        return names[text.lower()]

    return _setting(env, default, parse, ", ".join(kind))


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _buckets(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    buckets = orjson.loads(text)
    if type(buckets) is not dict or not all(map(_are_lengths, buckets.values())):
        raise ValueError
    return tuple((name, tuple(sorted(set(lengths)))) for name, lengths in buckets.items())


def _are_lengths(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(length) is int and length > 0 for length in value)


def _header_name(text: str) -> bytes:
    (name,) = _header_names(text)
    return name


def _weights(text: str) -> tuple[tuple[bytes, float], ...]:
    weights = orjson.loads(text)
    if type(weights) is not dict or not all(type(weight) in (int, float) and weight > 0 for weight in weights.values()):
        raise ValueError
    return tuple((key.encode(), weight) for key, weight in weights.items())


_ADDRESS = "HOST:PORT or unix:PATH"
_ABOVE_ZERO = 5e-324  # the smallest positive float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    model_name: str = _setting("SHOAL_MODEL_NAME", "model", _name, "letters, digits, '.', '_' and '-'")
    """The model's name in callers' paths, and at the runtime."""
    model_version: str = _setting("SHOAL_MODEL_VERSION", "1", _name, "letters, digits, '.', '_' and '-'")
    """The one version that callers may name."""
    log_level: str = _setting("SHOAL_LOG_LEVEL", "INFO", log_level, ", ".join(LEVELS))
    """What is too unimportant for the log."""
    instance: str = _setting("SHOAL_PROXY_INSTANCE", "", _name, "letters, digits, '.', '_' and '-'")
    """What the metrics call this replica, in the header ``x-shoal-instance``; empty: it has no name."""
    listen: Address = _setting("SHOAL_PROXY_LISTEN", Address("127.0.0.1", 8080), _address, _ADDRESS)
    """Where callers connect; port 0 picks a free one."""
    admin_listen: Address = _setting("SHOAL_PROXY_ADMIN_LISTEN", Address("127.0.0.1", 9090), _tcp_address, "HOST:PORT")
    """Health, metrics and drain."""
    admin_hosts: tuple[str, ...] = _setting(
        "SHOAL_PROXY_ADMIN_HOSTS", (), _host_names, "comma-separated host names or *"
    )
    """Names the admin port answers to, besides addresses and names that are no public ones."""
    runtime: Address = _setting(
        "SHOAL_PROXY_RUNTIME",
        Address(path="/run/shoal/runtime.sock"),
        _address,
        "unix:PATH or http://HOST:PORT",
    )
    """The V2 server that runs the model, ours or a foreign one."""
    max_batch_size: int = _number("SHOAL_BATCHING_MAX_BATCH_SIZE", 32, 1, 65536)
    """Rows per batch; never exceeded. The runtime's own limit holds too."""
    policy: Policy = _choice("SHOAL_BATCHING_POLICY", Policy.ADAPTIVE)
    """How batches are formed: by what was learned, by size and delay, or not at all."""
    latency_objective_ms: float = _number("SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", 0.0, 0, 3_600_000)
    """Within what time answers should leave; batches are as full as it allows, and what cannot make it is refused. 0:
    as soon as possible."""
    max_delay_ms: float = _number("SHOAL_BATCHING_MAX_DELAY_MS", 0.0, 0, 60_000)
    """With `Fixed`: how long a batch may wait for more rows while the runtime is idle; 0: never wait."""
    pad_buckets: tuple[tuple[str, tuple[int, ...]], ...] = _setting(
        "SHOAL_BATCHING_PAD_BUCKETS", (), _buckets, 'a JSON object of lists of lengths, {"tokens": [64, 128]}'
    )
    """Lengths to pad to, by input, instead of the model's own."""
    padding_factor: float = _number("SHOAL_BATCHING_PADDING_FACTOR", FACTOR, 2, 1_000_000)
    """Without buckets: how many times its own size a row may be padded to for the sake of others in its batch."""
    in_flight: int = _number("SHOAL_BATCHING_IN_FLIGHT", 1, 1, 64)
    """Batches that the runtime executes at a time; one more full batch is sent ahead."""
    idempotent: bool = _setting("SHOAL_BATCHING_IDEMPOTENT", default=False, parse=_boolean, allowed="true or false")
    """A batch whose runtime died meanwhile may be sent once more."""
    coalesce: bool = _setting("SHOAL_BATCHING_COALESCE", default=False, parse=_boolean, allowed="true or false")
    """Identical requests in flight share one row."""
    queue_max_rows: int = _number("SHOAL_QUEUE_MAX_ROWS", 1024, 1, 2**31)
    """Rows that may wait; at least one batch."""
    queue_max_bytes: int = _number("SHOAL_QUEUE_MAX_BYTES", 256 * MIB, KIB, TIB)
    """Bytes of request bodies and inputs that may be held."""
    queue_timeout_ms: float = _number("SHOAL_QUEUE_TIMEOUT_MS", 60_000.0, 1, 3_600_000)
    """Deadline of a request that names none."""
    priority_ageing_ms: float = _number("SHOAL_QUEUE_PRIORITY_AGEING_MS", 1000.0, 0, 3_600_000)
    """Each level of ``x-shoal-priority`` waits as if it had come this much later."""
    fair_share_header: bytes = _setting("SHOAL_QUEUE_FAIR_SHARE_HEADER", b"", _header_name, "a header name")
    """Callers who differ in this header share the runtime by weight, however much each of them asks."""
    fair_share_weights: tuple[tuple[bytes, float], ...] = _setting(
        "SHOAL_QUEUE_FAIR_SHARE_WEIGHTS", (), _weights, "a JSON object of weights above 0"
    )
    """Weights of callers; others have 1."""
    max_body_bytes: int = _number("SHOAL_PROXY_MAX_BODY_BYTES", 64 * MIB, KIB, TIB)
    """Longest request body; longer ones are answered 413 without being read."""
    max_head_bytes: int = _number("SHOAL_PROXY_MAX_HEAD_BYTES", 32 * KIB, KIB, 16 * MIB)
    """Longest request line and headers, each header counted with 32 bytes more; longer ones are answered 431."""
    head_timeout_s: float = _duration("SHOAL_PROXY_HEAD_TIMEOUT_S", 30.0, 3600)
    """How long a head may take to arrive, from the connection's start or its own first byte."""
    body_timeout_s: float = _duration("SHOAL_PROXY_BODY_TIMEOUT_S", 60.0, 3600)
    """How long a body may take that arrives more slowly than `min_bytes_per_s`."""
    write_timeout_s: float = _duration("SHOAL_PROXY_WRITE_TIMEOUT_S", 60.0, 3600)
    """How long an answer may wait that is taken more slowly than `min_bytes_per_s`."""
    idle_timeout_s: float = _duration("SHOAL_PROXY_IDLE_TIMEOUT_S", 620.0, 86400)
    """How long a connection is kept between requests. Longer than any load balancer's own: the side that reuses a
    connection must be the one that closes it."""
    min_bytes_per_s: int = _number("SHOAL_PROXY_MIN_BYTES_PER_S", 16 * KIB, 1, TIB)
    """At this rate a body may come, and an answer be taken, for as long as it takes."""
    max_connections: int = _number("SHOAL_PROXY_MAX_CONNECTIONS", 0, 0, 1_000_000)
    """Callers' connections; 0: 10,000, or what the limit of open files allows."""
    max_connections_per_address: int = _number("SHOAL_PROXY_MAX_CONNECTIONS_PER_ADDRESS", 0, 0, 1_000_000)
    """Connections from one address; 0: any number, because behind an ingress all callers have its address."""
    drain_delay_s: float = _number("SHOAL_PROXY_DRAIN_DELAY_S", 0.0, 0, 600)
    """How long to keep accepting after becoming unready, so that routers see it first."""
    drain_timeout_s: float = _number("SHOAL_PROXY_DRAIN_TIMEOUT_S", 60.0, 0, 3600)
    """How long to wait for queue and batches once accepting has stopped."""
    forward_headers: tuple[bytes, ...] = _setting(
        "SHOAL_PROXY_FORWARD_HEADERS", (), _header_names, "comma-separated header names"
    )
    """Headers the runtime gets; requests that differ in one never share a batch."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Return the settings that ``environ`` gives; an empty variable means the default.

        Raises:
            SettingsError: a value is malformed or out of range, or a name is misspelt.
        """
        faults = misspelt(environ, "proxy", {item.metadata["env"] for item in fields(cls)})
        if faults:
            raise SettingsError("; ".join(faults))
        values = {
            item.name: _read(item.metadata, environ[item.metadata["env"]])
            for item in fields(cls)
            if environ.get(item.metadata["env"])
        }
        # The default bound follows a larger batch, so that setting one number is enough.
        values.setdefault("queue_max_rows", max(1024, 4 * values.get("max_batch_size", 32)))
        settings = cls(**values)
        settings.validate()
        return settings

    def validate(self) -> None:
        """Raise `SettingsError` where two settings contradict each other."""
        if self.queue_max_rows < self.max_batch_size:
            raise SettingsError(
                f"SHOAL_QUEUE_MAX_ROWS must be at least SHOAL_BATCHING_MAX_BATCH_SIZE ({self.max_batch_size}),"
                f" not {self.queue_max_rows}"
            )
        for needed, name, given in (
            (Policy.FIXED, "SHOAL_BATCHING_MAX_DELAY_MS", self.max_delay_ms),
            (Policy.ADAPTIVE, "SHOAL_BATCHING_LATENCY_OBJECTIVE_MS", self.latency_objective_ms),
        ):
            if given and self.policy is not needed:
                raise SettingsError(f"{name} works with SHOAL_BATCHING_POLICY={needed} only, not {self.policy}")
        if self.fair_share_weights and not self.fair_share_header:
            raise SettingsError("SHOAL_QUEUE_FAIR_SHARE_WEIGHTS needs SHOAL_QUEUE_FAIR_SHARE_HEADER")
        if self.max_delay_ms >= self.queue_timeout_ms:
            raise SettingsError(
                f"SHOAL_BATCHING_MAX_DELAY_MS must be less than SHOAL_QUEUE_TIMEOUT_MS ({self.queue_timeout_ms:g}),"
                f" not {self.max_delay_ms:g}: requests would expire before their batch closes"
            )


def _read(rule: Mapping[str, Any], text: str) -> Any:
    try:
        value = rule["parse"](text)
    except (ValueError, UnicodeError):
        raise SettingsError(f"{rule['env']} must be {rule['allowed']}, not {text!r}") from None
    if rule["within"] and not rule["within"][0] <= value <= rule["within"][1]:
        raise SettingsError(f"{rule['env']} must be {rule['allowed']}, not {text!r}")
    return value
