"""Sampling of traces, and spans. Pure.

`shoal_proxy.tracer` records spans, `shoal_proxy.exporting` exports them. Only the latter imports the OpenTelemetry SDK,
and it is imported only where tracing is configured.
"""
