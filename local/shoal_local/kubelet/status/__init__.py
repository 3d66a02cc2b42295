"""A pod's status, from what is observed of its containers."""
