"""headrace: asynchronous reinforcement learning for language-model reasoning.

`headrace.train` runs a recipe from Python; everything else is documented where it lives.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.launch.python_api import train

if "torch" not in sys.modules:
    # OpenMP's threads spin for milliseconds while they wait, unless told before torch loads it: time that is taken from the other side,
    # or from any other program. GNU's runtime (Linux) can spin for some 50 µs, the time between two operations, and sleep then.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"
__all__ = ["__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import `train` when it is asked for: it needs torch, which takes seconds that `headrace check` must not wait for."""
    if name == "train":
        from headrace.launch.python_api import train

        return train
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
