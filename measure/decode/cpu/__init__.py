"""The decode run of a machine without a GPU."""
