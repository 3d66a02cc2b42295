"""Rollouts that are judged, with simulated candidates."""
