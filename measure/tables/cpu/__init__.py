"""Tables of a machine without a GPU, and of the CPU router on any."""
