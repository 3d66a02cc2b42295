"""The four patch types of the Kubernetes API and who owns which field. Pure."""
