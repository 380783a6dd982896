"""RocketKV routing as separate kernels."""

KERNELS = "gpu_router/stepwise/kernels.py"
SOURCES = ("gpu_router/stepwise/router.py", KERNELS)
GPU_TABLES = {"gpu_route_stepwise": SOURCES}
