"""Rollouts that are judged: with simulated candidates, and with real ones as processes."""

COLUMNS = 16
"""Numbers of a row."""
