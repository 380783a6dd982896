"""RocketKV routing as one kernel."""

_FOLDER = "gpu_router/fused"
SOURCES = (f"{_FOLDER}/router.py", f"{_FOLDER}/router_fused.cu", f"{_FOLDER}/router_fused")
GPU_TABLES = {"gpu_route_fused": SOURCES}
