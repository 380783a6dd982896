"""The CPU router: a pool of spinning C++ threads."""

CPU_TABLES = dict.fromkeys(
    ("cpu_route", "cpu_update"), ("cpu_router/cpu_router.cpp", "cpu_router/router")
)
