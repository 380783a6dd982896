"""GPU routers, a folder each."""
