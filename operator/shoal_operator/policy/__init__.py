"""The install's policy and the restricted Pod Security level."""
