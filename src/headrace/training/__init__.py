"""The trainer: log-probabilities, collation, optimizer, its own checkpoint."""
