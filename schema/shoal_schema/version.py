"""Shoal's version: here and nowhere else. `make generated` carries it to what no Python reads (RELEASING.md)."""

VERSION = "0.1.0"
