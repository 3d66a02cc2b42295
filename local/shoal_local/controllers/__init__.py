"""Controllers and scheduler of a local cluster, as clients of its API."""
