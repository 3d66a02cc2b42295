"""Where models are kept: object stores, hubs and registries, each a `Store` that lists a model's files and reads them.

Owns what is brought from where, in which order and within which limits. Never looks into a file, and never loads one.
"""
