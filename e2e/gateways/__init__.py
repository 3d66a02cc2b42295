"""Real gateways in front of a service: what starts them, and what asks through them."""
