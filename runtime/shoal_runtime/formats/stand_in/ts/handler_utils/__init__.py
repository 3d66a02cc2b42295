"""Decorators for methods of handlers."""
