"""The four patch types of the Kubernetes API, and the ownership of fields. Pure."""
