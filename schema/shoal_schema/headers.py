"""Names of the headers on the wire, in lower case: between callers and the proxy, and between proxy and runtime."""

from typing import Final

REQUEST_ID: Final = "x-request-id"
"""A caller's own name for a request; the answer repeats it, and the runtime's log has it."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
"""W3C trace context: passed on to the runtime, and ``traceparent`` repeated in the answer."""
TIMEOUT_MS: Final = "x-request-timeout-ms"
"""How long the sender waits, in milliseconds."""
HEADER_LENGTH: Final = "inference-header-content-length"
"""Bytes of JSON before the binary tensors of a body."""
PRIORITY: Final = "x-shoal-priority"
"""A digit, 0 for what is served first."""
EXECUTED: Final = "x-shoal-executed"
"""Of an error: whether the model may have run, ``no`` or ``maybe``."""
INSTANCE: Final = "x-shoal-instance"
"""Of ``/metrics``, ``/v1/load``, and answers to siblings: whose they are."""
HANDED_OVER: Final = "x-shoal-handed-over"
"""Of a request that another replica has given away: it is served or refused here, never handed on."""
LOAD_FORMAT: Final = "endpoint-load-metrics-format"
"""Asks for `LOAD` in the answer: ``TEXT`` or ``JSON`` (ORCA, as Envoy and vLLM know it)."""
LOAD: Final = "endpoint-load-metrics"
GRAPHS: Final = "x-shoal-graphs"
"""The graphs that a request has come through, separated by commas: one that finds itself among them refuses it."""
ADMIN: Final = "x-shoal-admin"
"""What a page of another site cannot send without leave: asked for by what changes something."""
OWN_HEADERS: Final = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te", "trailer",
    "transfer-encoding", "upgrade", HEADER_LENGTH, TIMEOUT_MS,
})  # fmt: skip
"""What a connection or a body says about itself, and what the proxy tells the runtime on its own account."""
OWN_HEADERS_PATTERN: Final = f"(?i)^({'|'.join(sorted(OWN_HEADERS))})$"
