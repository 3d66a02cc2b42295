"""Status of PodDisruptionBudgets."""
