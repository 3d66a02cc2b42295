"""TorchServe's metrics for handlers; their values are discarded."""
