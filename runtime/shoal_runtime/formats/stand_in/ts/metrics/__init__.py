"""Metrics of handlers, which are counted nowhere."""
