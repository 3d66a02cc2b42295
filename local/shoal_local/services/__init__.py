"""Local access to services: TCP listeners that forward to ready pods."""
