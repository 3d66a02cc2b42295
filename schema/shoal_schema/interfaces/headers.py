"""HTTP headers in lower case: between clients and the proxy, and between proxy and runtime."""

from typing import Final

# Tracing.
REQUEST_ID: Final = "x-request-id"
"""The client's id of a request, repeated in the response and in the runtime's log."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
"""W3C trace context: passed to the runtime, and ``traceparent`` is repeated in the response."""
# Scheduling.
TIMEOUT_MS: Final = "x-request-timeout-ms"
"""Timeout of the client, in milliseconds."""
HEADER_LENGTH: Final = "inference-header-content-length"
"""Length of the JSON before the binary tensors of a body, in bytes."""
PRIORITY: Final = "x-shoal-priority"
"""Priority, 0 (first) to `LOWEST_PRIORITY`."""
LOWEST_PRIORITY: Final = 9
# Asynchronous requests.
PREFER: Final = "prefer"
"""With `RESPOND_ASYNC`, the client accepts a response without the result (RFC 7240)."""
RESPOND_ASYNC: Final = "respond-async"
PREFERENCE_APPLIED: Final = "preference-applied"
CALLBACK: Final = "x-shoal-callback"
"""URL to which the result is sent."""
STATUS: Final = "x-shoal-status"
"""On webhooks: the status of the result."""
ASYNC_ID: Final = "x-shoal-async-id"
"""Id for an asynchronous request, 32 hexadecimal digits: the activator has sent it to the client before."""
# Responses, and requests between replicas.
EXECUTED: Final = "x-shoal-executed"
"""On errors: whether the model may have run, ``no`` or ``maybe``."""
INSTANCE: Final = "x-shoal-instance"
"""Identity of the replica, on responses of ``/metrics`` and ``/v1/load`` and to peers."""
FORWARDED: Final = "x-shoal-forwarded"
"""Marks a request forwarded by a peer, which is never forwarded again."""
SHADOW: Final = "x-shoal-shadow"
"""Marks a batch that a candidate runs for comparison only."""
RETURN_MS: Final = "x-shoal-return-ms"
"""Time before the deadline of a forwarded request at which it is rejected unless it has begun, in milliseconds. The
replica that forwarded it serves it then."""
REVISION: Final = "x-shoal-revision"
"""Revision of the pods that served a request, on responses while a service has a candidate."""
# Load reports.
LOAD_FORMAT: Final = "endpoint-load-metrics-format"
"""Requests the header `LOAD` in the response: ``TEXT`` or ``JSON`` (ORCA, as in Envoy and vLLM)."""
LOAD: Final = "endpoint-load-metrics"
# Graphs and the admin port.
GRAPHS: Final = "x-shoal-graphs"
"""Graphs that a request has passed, comma-separated: a graph rejects a request that has passed it already."""
ADMIN: Final = "x-shoal-admin"
"""Required by admin requests that change state: a page of another origin cannot send it without a preflight."""
OWN_HEADERS: Final = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te", "trailer",
    "transfer-encoding", "upgrade", HEADER_LENGTH, TIMEOUT_MS,
})  # fmt: skip
"""Headers of the connection or the body, and those that the proxy sets for the runtime."""
OWN_HEADERS_PATTERN: Final = f"(?i)^({'|'.join(sorted(OWN_HEADERS))})$"
