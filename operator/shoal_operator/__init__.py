"""The operator: an ``InferenceService`` becomes Kubernetes objects, status and replicas.

Owns the custom resource, the objects made from it, its status and the number of replicas. Never
touches a request, never imports a tensor library, never writes to an object that it does not own.

``api``, ``manifests``, ``planning``, ``load`` and ``autoscaler`` are the pure core: no I/O, no
clock. The modules beside ``__main__`` are the shell: kopf's watches, the Kubernetes API, the
proxies' metrics.
"""
