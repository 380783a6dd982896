"""The hand-over between a GPU and the CPU router."""
