"""headrace: asynchronous reinforcement learning for language-model reasoning.

`headrace.train` runs a recipe from Python; everything else is documented where it lives.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.launch.python_api import train

__version__ = "0.1.0"
__all__ = ["__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import `train` when it is asked for: it needs torch, which takes seconds that `headrace check` must not wait for."""
    if name == "train":
        from headrace.launch.python_api import train

        return train
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
