"""Asynchronous requests: jobs, their results, and webhooks."""
