"""Planning, deciding and simulating work without tensors: each package is imported in a fresh interpreter."""

import subprocess
import sys

import pytest

PACKAGES = ["config", "staleness", "buffer", "batching", "controller", "simulator", "rewards", "telemetry"]
HEAVY = ["torch", "transformers", "ray", "vllm"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_and_all_its_modules_import_without_torch(package: str) -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module('headrace.{package}')\n"
        "names = [module.name for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.')]\n"
        "for name in names: importlib.import_module(name)\n"
        f"print(len(names), sorted(set({HEAVY}) & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    count, heavy = result.stdout.strip().split(" ", 1)
    assert int(count) > 0
    assert heavy == "[]"
