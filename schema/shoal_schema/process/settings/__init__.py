"""Settings of each process."""
