"""Metrics, access log, timings and recordings."""
