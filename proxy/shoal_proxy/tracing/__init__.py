"""Sampling of traces, and spans. Pure.

`shoal_proxy.observe.tracer` records spans, `shoal_proxy.observe.exporting` exports them. Only the latter imports the
OpenTelemetry SDK, and it is imported only where tracing is configured.
"""
