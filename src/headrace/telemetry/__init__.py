"""Events, and the sinks that make logs, metrics, files and the screen of them."""
