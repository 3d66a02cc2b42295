"""A rollout on this replica: batches and requests for the candidate's pods, and the comparison of results."""
