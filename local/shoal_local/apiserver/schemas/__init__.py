"""What an object may look like: built-in definitions and structural schemas of custom kinds. Pure."""
