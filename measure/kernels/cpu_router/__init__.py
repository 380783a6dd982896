"""The CPU router: a pool of spinning C++ threads."""
