"""Replacement of pods: upgrades to a new release, and stopping pods that keep serving."""
