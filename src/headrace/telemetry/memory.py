"""How much memory the run takes."""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def peak_resident_bytes() -> int:
    """Sum the peaks of resident memory of this process and of the descendants alive now, in bytes.

    On Linux from `VmHWM` of `/proc/<pid>/status`. An upper bound of the peak of the sum: the peaks need not coincide, and pages that
    processes share count in each. `getrusage` would not do: a child's `ru_maxrss` starts at what its parent had when it was forked.
    Elsewhere (macOS) `getrusage`'s peak of this process alone.
    """
    own_status = _PROC / "self" / "status"
    if own_status.is_file():
        return _high_water(own_status) + sum(_high_water(_PROC / pid / "status") for pid in _descendants("self"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _descendants(pid: str) -> Iterator[str]:
    for task in sorted((_PROC / pid / "task").glob("*/children")):
        for child in _text(task).split():
            yield child
            yield from _descendants(child)


def _high_water(status: Path) -> int:
    for line in _text(status).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(file: Path) -> str:
    """A file of /proc; nothing when its process has ended meanwhile."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
