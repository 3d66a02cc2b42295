"""Kubernetes operator for ``InferenceService`` and its related kinds.

The operator handles no inference requests, imports no tensor library, and writes only objects that it owns. The import
contracts of pyproject.toml list the modules of its core (pure functions) and of its shell (input and output).
"""
