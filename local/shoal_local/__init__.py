"""A Kubernetes cluster on one machine, for development: `shoal local`.

It has an API server, controllers, and a kubelet that runs containers as processes. An InferenceService is treated
like any other custom resource.
"""
