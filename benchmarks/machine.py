"""Facts of the machine and the code that a benchmark's numbers belong to."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]


def machine_facts() -> dict[str, object]:
    """Processor, cores, memory in GiB, versions, and the commit (with whether files differ from it)."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": memory_gib(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "commit": git("rev-parse", "HEAD"),
        # Not the results, which a run writes itself.
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")),
    }


def processor() -> str:
    """The processor's name; `platform.processor` is empty on most Linux systems."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def load_average() -> float:
    """Processes that computed in the last minute."""
    return round(os.getloadavg()[0], 2)


def git(*arguments: str) -> str:
    """Output of a git command on this checkout; empty outside of one."""
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return found.stdout.strip()
