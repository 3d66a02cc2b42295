"""Makes services callable on one machine: listens on their loopback addresses and passes connections on to ready pods."""
