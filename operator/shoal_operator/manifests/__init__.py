"""The Kubernetes objects of a service: pure ``make_*`` functions, one module for each kind.

Every object carries the labels of ``labels``, an owner reference to its ``InferenceService``, and
the hash of what we asked for. Nothing here reads the cluster.
"""
