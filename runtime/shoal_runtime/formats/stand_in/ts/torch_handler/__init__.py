"""Handlers that archives name instead of a file of their own."""
