"""Metrics of handlers, which are discarded."""
