"""The speed of `shoal batch` beside loops of torch and Ray Data."""
