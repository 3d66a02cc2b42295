"""Decorators for methods of TorchServe handlers."""
