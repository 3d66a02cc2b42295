"""Tables as `kubectl get` shows them, printed by the server. Pure: the time is an argument."""
