"""Conditions, Events and advice of a service's status."""
