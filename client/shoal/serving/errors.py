"""Errors of commands that serve or load models on this machine."""


class FieldError(ValueError):
    """An unknown field, or an invalid value."""


class LocalError(Exception):
    """A valid request that this machine cannot fulfil: a port in use, a package that is not installed."""
