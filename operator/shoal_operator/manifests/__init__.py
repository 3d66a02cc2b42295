"""The Kubernetes objects of a service: pure ``make_*`` functions, one module per kind.

Every object has the labels of `labels`, an owner reference to its ``InferenceService``, and a hash of its declaration.
Nothing here reads the cluster.
"""
