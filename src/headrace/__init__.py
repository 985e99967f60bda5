"""headrace: asynchronous reinforcement learning for language-model reasoning.

`headrace.train` runs a recipe from Python; everything else is documented where it lives.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.launch.python_api import train

if "torch" not in sys.modules:
    # OpenMP's threads spin while they wait, unless told before torch loads it. Engine and trainer share the cores: spinning, each would
    # take the other's (and any other program's) time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
__all__ = ["__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import `train` when it is asked for: it needs torch, which takes seconds that `headrace check` must not wait for."""
    if name == "train":
        from headrace.launch.python_api import train

        return train
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
