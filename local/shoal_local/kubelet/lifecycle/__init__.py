"""What to start and what to stop next in a pod, decided from what is observed."""
