"""The real controller with scripted parts under a virtual clock."""
