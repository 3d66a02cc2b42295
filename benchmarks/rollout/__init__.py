"""Rollouts that are judged: simulated candidates, and later real processes."""
