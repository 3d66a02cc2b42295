"""Authentication and authorization: tokens and role-based access control. Pure: the time is an argument."""
