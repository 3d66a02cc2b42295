"""Reconciliation of ``BatchInference``."""
