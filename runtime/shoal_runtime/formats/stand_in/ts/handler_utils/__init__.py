"""What handlers decorate their methods with."""
