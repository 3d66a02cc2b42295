"""Children of a resource: observed and desired objects, their pods, and the writes between them."""
