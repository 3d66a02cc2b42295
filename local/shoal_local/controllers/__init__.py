"""The controllers and the scheduler of a cluster for one machine: clients of the API like any other."""
