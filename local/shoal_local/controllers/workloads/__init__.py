"""Deployments, their ReplicaSets and the pods of those. Pure: the time is an argument."""
