import subprocess
import sys

from headrace.telemetry.memory import peak_resident_bytes

HOLD_64_MB = "data = bytearray(64_000_000); print('ready', flush=True); input()"


def test_counts_this_process_and_its_living_descendants():
    alone = peak_resident_bytes()
    assert 5e6 < alone < 1e11
    with subprocess.Popen([sys.executable, "-c", HOLD_64_MB], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        together = peak_resident_bytes()
        child.communicate(b"\n")
    if sys.platform == "linux":
        assert 64e6 < together - alone < 200e6
        assert peak_resident_bytes() < together
