"""Traffic and a promise: what a deployment serves, and the cheapest that keeps it."""
