"""`[teacher]`: whose log-probabilities the policy is distilled from, token by token."""

import os
from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section
from headrace.errors import RecipeError


class LocalTeacher(Section):
    """A model on this machine, beside engine and trainer."""

    type: Literal["local"] = "local"
    name_or_path: str = Field(min_length=1)
    """As `model.name_or_path`, or the `final` folder of another run; its tokenizer must have the policy's vocabulary."""


class ServerTeacher(Section):
    """A server with OpenAI's completions API, for instance vLLM, that gives log-probabilities of a prompt in the policy's tokens."""

    type: Literal["server"] = "server"
    url: str = Field(pattern=r"^https?://.+")
    """Where the API begins, for instance `http://localhost:8000/v1`."""
    model: str | None = None
    """Name of the model on the server; unset takes the only one that it has."""
    form: Literal["prompt_logprobs", "echo"] = "prompt_logprobs"
    """How it is asked: `prompt_logprobs` as vLLM has them, or OpenAI's `echo` with `logprobs`."""
    api_key_env: str | None = None
    """Environment variable with the key; unset sends none."""
    max_concurrent_requests: int = Field(default=16, ge=1)
    """Sequences that it is asked about at once."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Limit of one request."""
    max_attempts: int = Field(default=5, ge=1)
    """So often a request is made when the connection fails or the server reports an error of its own."""

    def api_key(self) -> str | None:
        """The key itself.

        Raises:
            RecipeError: The environment has no such variable, or what it holds cannot be sent.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "")
        if not key:
            raise RecipeError(
                f"teacher.api_key_env = {self.api_key_env!r}, but there is no such environment variable; export it with the key"
            )
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise RecipeError(
                f"teacher.api_key_env = {self.api_key_env!r}: the environment variable has characters that no key has (line ends, spaces "
                "around it, or other than ASCII), so it cannot be sent; export the key alone"
            )
        return key


class SelfTeacher(Section):
    """A snapshot of the policy, taken again and again: a bound on how fast it may move away from itself."""

    type: Literal["self"] = "self"
    snapshot_every_steps: int = Field(default=10, ge=1)
    """Training steps between two snapshots; the first one is the initial policy."""


TeacherSection = Annotated[LocalTeacher | ServerTeacher | SelfTeacher, Field(discriminator="type")]
