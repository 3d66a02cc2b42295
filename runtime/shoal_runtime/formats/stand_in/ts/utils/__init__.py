"""TorchServe's utility functions for handlers."""
