"""RocketKV routing as one kernel."""
