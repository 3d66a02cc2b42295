"""Generate the Grafana dashboards from the names of the metrics; ``python -m monitoring`` writes them."""
