"""A Kubernetes cluster for one machine: API server, controllers, and a kubelet that runs containers as processes.

It implements `shoal local`. It is a development tool and never runs in production. It has no code for models, batches
or InferenceServices beyond what any Kubernetes cluster receives through its API.
"""
