"""Defaults, metadata rules and validation of objects. Pure."""
