"""What every section of a recipe is: frozen, closed, documented under each field."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen, closed pydantic model: an unknown key is an error, and nothing changes after validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=False)
