"""Replicas by load: readings of the pods, decisions, and writes."""
