"""Which tables a machine gets, and how each is measured."""
