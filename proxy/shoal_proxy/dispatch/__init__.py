"""From admitted requests to results: the dispatcher, the runtime's client, and limits on unread responses."""
