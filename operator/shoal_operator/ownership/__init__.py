"""Owners of services among installs, and other writers of the operator's fields."""
