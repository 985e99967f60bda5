"""`[model]` and `[data]`: what is trained, and on which prompts."""

from string import Formatter
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from headrace.config.base import FunctionName, Section


class ModelSection(Section):
    """The policy."""

    name_or_path: str = Field(min_length=1)
    """A Hugging Face model folder, a packaged model's name (see `headrace models`), or a name on the Hugging Face hub."""
    chat_template: str | None = None
    """Jinja template to use instead of the tokenizer's own."""


class FileSource(Section):
    """A file on this machine."""

    type: Literal["file"] = "file"
    path: str = Field(min_length=1)
    """A `.jsonl`, `.parquet` or `.csv` file; relative paths are looked up beside the recipe first, then where the command runs."""


class HubSource(Section):
    """A data set of the Hugging Face hub (needs `pip install headrace[hub]`)."""

    type: Literal["hub"] = "hub"
    name: str = Field(min_length=1)
    """Name on the hub, for instance `openai/gsm8k`."""
    config: str | None = None
    """The data set's configuration, for instance `main`."""
    split: str = "train"
    """Split to read."""


class ReasoningGymSource(Section):
    """A task of reasoning-gym, generated (needs `pip install headrace[gym]`)."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    task: str = Field(min_length=1)
    """Name of the task, for instance `chain_sum`."""
    size: int = Field(default=1000, ge=1)
    """Problems to generate."""
    seed: int = 0
    """Seed of the generator."""
    parameters: dict[str, JsonValue] = {}
    """The task's own parameters, for instance `{min_terms = 2, max_terms = 2}`."""


class PythonSource(Section):
    """An iterable of rows made by a Python function."""

    type: Literal["python"] = "python"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`; called without arguments, it returns an iterable of dictionaries."""


class PassedSource(Section):
    """Rows passed to `headrace.train` from Python; of no use in a file."""

    type: Literal["passed"] = "passed"


DataSource = Annotated[FileSource | HubSource | ReasoningGymSource | PythonSource | PassedSource, Field(discriminator="type")]


class DataSection(Section):
    """The prompts, and which of them are held out."""

    source: DataSource
    """Where the rows come from."""
    prompt_column: str = Field(default="prompt", min_length=1)
    """Column with the prompt: text, or a list of messages with `role` and `content`. Every other column goes to the rewards."""
    prompt_template: str | None = None
    """Python format string over the columns that makes the prompt, for instance `"What is {a} + {b}?"`; then no prompt column is needed."""
    system_prompt: str | None = None
    """Put before conversations that have no system message of their own."""
    apply_chat_template: bool = True
    """Give plain-text prompts to the model as a user's message in its chat template, when it has one. False: as bare text."""
    held_out: int = Field(default=0, ge=0)
    """Rows kept from training for evaluation, drawn with `run.seed`."""
    max_prompt_length: int = Field(default=1024, ge=1)
    """Tokens. Longer prompts are left out, and counted."""
    shuffle: bool = True
    """A new order each epoch, from `run.seed`. False keeps the file's order."""

    @field_validator("prompt_template")
    @classmethod
    def _names_columns(cls, template: str | None) -> str | None:
        if template is None:
            return None
        try:
            names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        except ValueError as error:
            raise ValueError(f"{template!r} is not a format string: {error}; write {{{{ and }}}} for braces that stay") from None
        if not names or any(not name or name[0].isdigit() for name in names):
            raise ValueError(f"{template!r} must name its columns, for instance 'What is {{a}} + {{b}}?'")
        return template
