"""What every section of a recipe is: frozen, closed, documented under each field."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, field_validator

LARGEST_WHOLE_NUMBER = 2**31 - 1
"""Versions, lengths and counts are 32-bit on their way through a run."""


class Section(BaseModel):
    """A frozen, closed, strictly typed pydantic model.

    An unknown key is an error, text is never taken for a number, infinities are refused, and nothing changes after validation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _fits_32_bits(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST_WHOLE_NUMBER:
            raise ValueError(
                f"{value} is larger than {LARGEST_WHOLE_NUMBER}, the largest whole number that fits 32 bits; choose a smaller one"
            )
        return value


def _names_a_function(name: str) -> str:
    module, _, function = name.partition(":")
    if not module or not function.isidentifier():
        raise ValueError(f"{name!r} does not name a function; write 'package.module:function' or 'path/to/file.py:function'")
    return name


FunctionName = Annotated[str, AfterValidator(_names_a_function)]
"""A Python function: `package.module:function` or `path/to/file.py:function`."""
