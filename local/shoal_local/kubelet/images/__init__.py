"""Images: names to commands of this machine."""
