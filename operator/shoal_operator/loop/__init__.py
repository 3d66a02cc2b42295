"""From events to reconciliations: watches, the work queue, workers, and leader election."""
