from typing import Any

import pytest
from config.recipes import recipe_with

from headrace.config.memory import estimate_memory
from headrace.config.model_facts import ModelFacts
from headrace.config.teacher import LocalTeacher, SelfTeacher, ServerTeacher
from headrace.errors import RecipeError

LOCAL = {"type": "local", "name_or_path": "big"}
SERVER = {"type": "server", "url": "http://localhost:8000/v1"}
DISTILL = {"name": "distill"}
BOTH = {"name": "grpo", "distillation_coefficient": 0.1}


@pytest.mark.parametrize(("table", "kind"), [(LOCAL, LocalTeacher), (SERVER, ServerTeacher)])
@pytest.mark.parametrize("algorithm", [DISTILL, BOTH])
def test_a_teacher_is_learned_from_alone_or_beside_rewards(table: dict[str, Any], kind: type, algorithm: dict[str, Any]) -> None:
    assert isinstance(recipe_with(teacher=table, algorithm=algorithm).teacher, kind)


def test_without_the_table_there_is_none() -> None:
    assert recipe_with().teacher is None


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"algorithm": DISTILL}, "distillation_coefficient = 1, but nobody is there to learn from"),
        ({"algorithm": {"name": "grpo"}, "teacher": LOCAL}, "nothing is learned from it"),
        ({"algorithm": DISTILL, "teacher": SERVER, "sampling": {"temperature": 0.7}}, "temperature 1, but sampling.temperature = 0.7"),
        ({"algorithm": DISTILL, "teacher": {"type": "self"}}, "only itself to learn from"),
        ({"algorithm": DISTILL | {"beta": 0.1, "kl_in": "reward"}, "teacher": LOCAL}, "kl_in = 'reward' would do nothing"),
        ({"algorithm": DISTILL | {"mask_truncated_completions": True}, "teacher": LOCAL}, "would do nothing"),
        ({"algorithm": DISTILL, "teacher": SERVER | {"url": "localhost:8000"}}, "pattern"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        recipe_with(**sections)


def test_a_server_at_temperature_one_and_a_snapshot_beside_rewards_are_fine() -> None:
    recipe_with(algorithm=DISTILL, teacher=SERVER, sampling={"temperature": 1.0})
    assert isinstance(recipe_with(algorithm=BOTH, teacher={"type": "self", "snapshot_every_steps": 3}).teacher, SelfTeacher)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "secret")
    assert ServerTeacher(url="http://a", api_key_env="TEACHER_KEY").api_key() == "secret"
    assert ServerTeacher(url="http://a").api_key() is None
    monkeypatch.delenv("TEACHER_KEY")
    with pytest.raises(RecipeError, match="'TEACHER_KEY', but there is no such environment variable"):
        ServerTeacher(url="http://a", api_key_env="TEACHER_KEY").api_key()


@pytest.mark.parametrize("key", ["secret\n", " secret", "sécret", "sec\tret"])
def test_a_key_that_cannot_be_sent_is_refused_without_saying_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    with pytest.raises(RecipeError, match="characters that no key has") as caught:
        ServerTeacher(url="http://a", api_key_env="TEACHER_KEY").api_key()
    assert "cret" not in str(caught.value)


def facts(num_parameters: int, embedding: tuple[int, int]) -> ModelFacts:
    return ModelFacts(
        num_parameters=num_parameters,
        num_layers=1,
        hidden_size=8,
        intermediate_size=16,
        num_kv_heads=2,
        head_dim=4,
        max_positions=None,
        matrices={"embed": embedding, "up": (16, 8)},
    )


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, {}),
        ({"teacher": LOCAL, "algorithm": DISTILL}, {"teacher": 4 * 5000}),
        ({"teacher": LOCAL, "algorithm": DISTILL, "training": {"autocast": "bfloat16"}}, {"teacher": 2 * 5000 + 4 * 300 * 8}),
        ({"teacher": {"type": "self"}, "algorithm": BOTH}, {"teacher": 4 * 1000}),
        ({"algorithm": {"beta": 0.1, "kl_in": "reward", "kl_estimator": "k1"}}, {"reference copy": 4 * 1000}),
        ({"algorithm": {"beta": 0.1}}, {"reference copy": 4 * 1000}),
    ],
)
def test_frozen_copies_are_in_the_memory_estimate(sections: dict[str, Any], expected: dict[str, int]) -> None:
    teacher = facts(5000, (300, 8)) if sections.get("teacher") == LOCAL else None
    parts = estimate_memory(recipe_with(**sections), facts(1000, (20, 8)), teacher=teacher).parts
    assert {part.name: part.num_bytes for part in parts if part.name in ("teacher", "reference copy")} == expected
