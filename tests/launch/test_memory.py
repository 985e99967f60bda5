import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading
if sys.argv[1] == "one arena":
    from headrace.launch.memory import return_freed_memory
    return_freed_memory()
kept = []
started = threading.Barrier(5)
def allocate():
    started.wait()
    kept.append([bytes(100_000) for _ in range(50)])
    started.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
started.wait(); started.wait()
# An arena of a thread is mapped in stretches of 64 MiB, of which the unused rest has no access rights.
size = lambda line: int(line.split()[0].split("-")[1], 16) - int(line.split()[0].split("-")[0], 16)
lines = open("/proc/self/maps").read().splitlines()
pairs = zip(lines, lines[1:])
print(sum(size(a) + size(b) == 64 << 20 and " rw-p " in a and " ---p " in b for a, b in pairs))
"""


@pytest.mark.skipif(not Path("/lib/x86_64-linux-gnu/libc.so.6").exists(), reason="arenas are glibc's")
def test_threads_share_one_arena_after_the_call() -> None:
    arenas = {
        mode: int(subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, check=True, timeout=60, text=True).stdout)
        for mode in ("default", "one arena")
    }
    assert arenas["default"] > 0
    assert arenas["one arena"] == 0
