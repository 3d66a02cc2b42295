"""Grafana's dashboards, made from the metrics' names: not part of what runs. ``python -m monitoring`` writes them."""
