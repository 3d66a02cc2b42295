"""Request and response bodies: memory limits and stepwise compression."""
