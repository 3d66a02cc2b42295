"""What a controller decided to do, as values."""
