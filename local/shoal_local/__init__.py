"""A cluster for one machine.

API server, controllers and a kubelet that runs containers as processes.

It owns what `shoal local` starts. It is a development tool: it never runs in production, and it
knows nothing of models, batches or InferenceServices beyond what any Kubernetes cluster would be
told through its API.
"""
