"""The activator: holds requests of services at zero replicas until a pod is ready. Uses no Kubernetes API."""
