"""One reconciliation: observe, plan, write, report."""
