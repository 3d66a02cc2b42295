"""Makes services reachable on one machine: listens on their addresses and forwards connections to ready pods."""
