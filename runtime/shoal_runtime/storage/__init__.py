"""Stores of model files: object stores, hubs and registries, each a `Store` that lists and reads a model's files.

Stores decide which files are downloaded, in which order and within which limits. They never interpret a file.
"""
