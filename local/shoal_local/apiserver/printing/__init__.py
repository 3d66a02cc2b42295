"""The tables of `kubectl get`, which the server prints. Pure: the time is an argument."""
