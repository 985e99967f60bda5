"""Prompt sources: files, hub data sets, reasoning-gym, Python."""
