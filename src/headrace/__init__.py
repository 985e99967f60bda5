"""headrace: asynchronous reinforcement learning for language-model reasoning.

`headrace.train` runs a recipe from Python; everything else is documented where it lives.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.launch.python_api import train

WAITING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
"""Environment variables that are set unless they are, or torch has been imported: how OpenMP's threads wait for one another.

They spin for milliseconds unless told otherwise: time that is taken from the other side, or from any other program. GNU's runtime
(Linux) can spin for some 50 µs, the time between two operations, and sleep then.
"""

if "torch" not in sys.modules:
    os.environ.update({name: value for name, value in WAITING_THREADS.items() if name not in os.environ})

__version__ = "0.1.0"
__all__ = ["__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import `train` when it is asked for: it needs torch, which takes seconds that `headrace check` must not wait for."""
    if name == "train":
        from headrace.launch.python_api import train

        return train
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
