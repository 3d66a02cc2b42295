"""What handlers call."""
