"""Probes: when one is due and what a row of results means."""
