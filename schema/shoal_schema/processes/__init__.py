"""Settings that processes read from their environment alone, one module for each process."""
