"""Handing new weights to the engines: one file a way of publishing."""
