"""Execution of batches on one device: stages, threads, placement of tensors."""
