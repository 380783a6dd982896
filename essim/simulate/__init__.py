"""Scenarios in, result rows out: runs, memory, timelines, uncertainty."""
