"""The operator: an ``InferenceService`` becomes Kubernetes objects, status and replicas.

Owns the custom resource, the objects made from it, its status and the number of replicas. Never touches a request,
never imports a tensor library, never writes to an object that it does not own. Which modules are its pure core and
which its shell stands in the import contracts of pyproject.toml.
"""
