"""The loop, its supervision, and resuming."""
