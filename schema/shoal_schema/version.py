"""Shoal's version. `make generated` copies it to files that do not import Python (RELEASING.md)."""

VERSION = "0.1.0"
