"""Request and response bodies: memory, compression, and their turns on the event loop."""
