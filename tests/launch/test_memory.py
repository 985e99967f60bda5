import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
import re, sys
sys.path.insert(0, sys.argv[1])
from small_events import step_finished
from headrace.launch.memory import FreedMemoryReturner

def resident_megabytes():
    return int(re.search(r"VmRSS:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024

returner = FreedMemoryReturner()
pieces = [bytearray(100_000) for _ in range(4_000)]
pins = pieces[::8]  # what stays keeps the heap from shrinking by itself
del pieces
before = resident_megabytes()
returner.handle(0.0, step_finished(1))
print(before - resident_megabytes())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc_trim is glibc's")
def test_freed_pieces_of_the_heap_go_back_after_a_step() -> None:
    tests = str(Path(__file__).parents[1] / "telemetry")
    command = [sys.executable, "-c", PROGRAM, tests]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    assert float(ended.stdout) > 200
