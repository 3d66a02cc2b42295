"""The operator: reconciles an ``InferenceService`` to Kubernetes objects, status and replicas.

It handles no inference requests, imports no tensor library, and writes to no object that it does not own. The import
contracts of pyproject.toml list the modules of its pure core and of its shell.
"""
