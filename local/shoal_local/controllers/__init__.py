"""The controllers that a cluster for one machine needs, and its scheduler: clients of the API like any other."""
