"""Where headrace keeps what it fetches and builds once."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$HEADRACE_CACHE`, or `~/.cache/headrace`."""
    return Path(os.environ.get("HEADRACE_CACHE") or "~/.cache/headrace").expanduser()
