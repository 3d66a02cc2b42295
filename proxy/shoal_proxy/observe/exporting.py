"""Export of spans to an OpenTelemetry collector, in a separate thread."""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shoal_proxy.observe.tracer import Tracer
from shoal_proxy.tracing.sampling import SpanContext as SampledContext
from shoal_proxy.tracing.span import Span
from shoal_schema.version import VERSION

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
AT_ONCE: Final = 512
LAST_WORDS_S: Final = 2.0
"""Time limit for exporting the last spans when the process ends."""
_SCOPE: Final = InstrumentationScope("shoal_proxy", VERSION)
_CERTIFICATES: Final = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
"""The SDK's settings of the authorities to trust."""
_PROVIDERS: Final = tuple(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{each}CREDENTIAL_PROVIDER" for each in ("TRACES_", ""))
"""The SDK's settings of a plugin that makes the session."""


class Session(requests.Session):
    """HTTP session whose CA certificates override ``REQUESTS_CA_BUNDLE``."""

    def __init__(self) -> None:
        super().__init__()
        self._untrusted_logged = False

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Send a request; if the server's certificate is not trusted, log the remedy once."""
        # The environment replaces the session's value, but not that of a request.
        options["verify"] = self.verify
        try:
            return super().request(*args, **options)
        except requests.exceptions.SSLError as error:
            if not self._untrusted_logged and "CERTIFICATE_VERIFY_FAILED" in str(error):
                self._untrusted_logged = True
                logger.warning(
                    "event=collector_untrusted error=%r remedy=%r",
                    str(error),
                    f"Set {_CERTIFICATES[1]} or SSL_CERT_FILE to the file of the authority (in a cluster with proxy.env"
                    " and proxy.volumeMounts)",
                )
            raise


class Exporter:
    """Thread that exports spans to the collector named in the environment."""

    def __init__(self, tracer: Tracer, environ: Mapping[str, str], model: str) -> None:
        self._tracer = tracer
        # As for other connections of the proxy. The SDK reads only its own settings.
        trusted = environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR")
        self._exporter = OTLPSpanExporter(
            certificate_file=None if any(map(environ.get, _CERTIFICATES)) else trusted,
            session=None if any(map(environ.get, _PROVIDERS)) else Session(),
        )
        # A service name in the environment has priority over the model's name.
        named = "service.name" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or environ.get("OTEL_SERVICE_NAME")
        self._resource = Resource.create({} if named else {SERVICE_NAME: model})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._logged = 0
        """Dropped spans logged so far."""

    def start(self) -> None:
        """Start the exporting thread."""
        self._thread.start()

    def close(self) -> None:
        """Export the remaining spans within `LAST_WORDS_S`."""
        self._stop.set()
        self._thread.join(LAST_WORDS_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        ends = False
        while not ends:
            ends = self._stop.wait(INTERVAL_S)
            # Exported in parts, so that a collector's size limit is not exceeded.
            spans = self._tracer.take()
            for start in range(0, len(spans), AT_ONCE):
                part = spans[start : start + AT_ONCE]
                # Computed each time, as the system clock may be adjusted.
                to_wall_ns = time.time_ns() - time.monotonic_ns()
                try:
                    self._exporter.export([readable(span, self._resource, to_wall_ns) for span in part])
                except Exception:  # no error of the SDK may end the thread
                    logger.exception("event=spans_not_sent count=%d", len(part))
            if (dropped := self._tracer.dropped) > self._logged:
                logger.warning("event=spans_dropped count=%d", dropped - self._logged)
                self._logged = dropped


def readable(span: Span, resource: Resource, to_wall_ns: int) -> ReadableSpan:
    """Convert a span to the class of the OpenTelemetry SDK.

    ``to_wall_ns`` is the offset (ns) from monotonic to Unix time.
    """

    def at(monotonic_s: float) -> int:
        return int(monotonic_s * 1e9) + to_wall_ns

    return ReadableSpan(
        name=span.name,
        context=_context(span.context),
        parent=None if span.parent is None else _context(span.parent, remote=True),
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, timestamp=at(when_s)) for name, when_s in span.events],
        links=[Link(_context(other)) for other in span.links],
        kind=SpanKind.INTERNAL if span.name == "batch" else SpanKind.SERVER,
        status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.UNSET),
        start_time=at(span.began_s),
        end_time=at(span.ended_s),
        instrumentation_scope=_SCOPE,
    )


def _context(context: SampledContext, *, remote: bool = False) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, remote, TraceFlags(int(context.sampled)))
