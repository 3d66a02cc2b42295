"""Who is asking, and may they: tokens and role-based access control. Pure: the time is an argument."""
