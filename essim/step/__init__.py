"""A decode step as a list of ops, what each has to do, and what it costs."""
