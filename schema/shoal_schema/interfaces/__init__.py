"""Reports, headers and metrics that components exchange, apart from tensors."""
