"""Stores of models: object stores, hubs and registries, each a `Store` that lists and reads a model's files.

It decides which files are downloaded, in which order and within which limits. It never interprets a file.
"""
