"""Logs of containers: the lines that were asked for."""
