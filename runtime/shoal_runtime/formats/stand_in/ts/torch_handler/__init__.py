"""TorchServe's default handlers, for archives without a handler file."""
