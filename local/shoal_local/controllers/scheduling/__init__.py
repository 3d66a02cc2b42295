"""The scheduler: which node a pod fits, and why it fits none."""
