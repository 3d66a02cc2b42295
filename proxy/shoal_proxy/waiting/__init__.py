"""The waiting room: holds requests of services that sleep until a pod is ready. It knows no Kubernetes."""
