"""Functions for handlers."""
