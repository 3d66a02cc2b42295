"""Stores of model files: object stores, hubs and registries.

Stores decide which files are downloaded, in which order and within which limits. They never interpret a file.
"""
