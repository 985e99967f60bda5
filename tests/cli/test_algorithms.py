"""What `headrace algorithms` shows is short enough to read and can be pasted into a recipe."""

import sys
import tomllib

import pytest

from headrace.cli import main as command
from headrace.cli.algorithms import describe_algorithm, list_algorithms
from headrace.config.algorithm import AlgorithmSection
from headrace.config.named_algorithms import NAMED_ALGORITHMS
from headrace.errors import RecipeError


def parsed(lines: list[str]) -> AlgorithmSection:
    return AlgorithmSection.model_validate(tomllib.loads("\n".join(lines))["algorithm"])


def test_the_list_has_every_name_with_idea_source_and_loss() -> None:
    lines = list(list_algorithms())
    words = " ".join(" ".join(lines).split())
    for name, algorithm in NAMED_ALGORITHMS.items():
        assert any(line.split()[0] == name for line in lines)
        assert algorithm.idea in words
        assert algorithm.source in words
    assert sum(line.strip().startswith("Σ -") for line in lines) == len(NAMED_ALGORITHMS)
    assert max(map(len, lines)) <= 100


def test_one_entry_of_the_list() -> None:
    lines = list(list_algorithms())
    start = next(number for number, line in enumerate(lines) if line.startswith("areal"))
    assert lines[start : start + 7] == [
        "areal         decoupled PPO: clipped against the policy at the start of the step, weighted for the",
        "              one that sampled",
        "              arXiv 2505.24298",
        "              Σ -w·min(r·A, clip(r, 0.8, 1.2)·A)",
        "              r = π/π_prox, w = π_prox/π_behaviour of each token, left out outside [0, 5],",
        "              π_prox by recompute, A = (R - group mean) / group std",
        "              Σ / completion tokens of the batch",
    ]


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_one_can_be_pasted_into_a_recipe(name: str) -> None:
    lines = list(describe_algorithm(name))
    assert max(map(len, lines)) <= 100
    expected = AlgorithmSection.model_validate({"name": name})
    assert parsed(lines) == expected
    nameless = [line for line in lines if not line.startswith("name = ")]
    assert parsed(nameless) == expected.model_copy(update={"name": "grpo"}), "every key that differs is there"


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_its_comments_are_the_defaults_of_all_other_keys(name: str) -> None:
    lines = list(describe_algorithm(name))
    with_comments = [line.removeprefix("# ") for line in lines[lines.index("[algorithm]") :] if " is unset" not in line]
    settings = [line for line in with_comments if " = " in line]
    assert parsed(["[algorithm]", *settings]) == AlgorithmSection.model_validate({"name": name})
    unset = [line.split()[1] for line in lines if line.endswith(" is unset")]
    assert {line.split(" = ")[0] for line in settings} | set(unset) == set(AlgorithmSection.model_fields)


@pytest.mark.parametrize(
    ("name", "hint"), [("grop", "did you mean 'grpo'?"), ("zzz", "there are grpo, dr_grpo, dapo, gspo, cispo, sapo, m2po, rloo, ")]
)
def test_a_name_that_does_not_exist(name: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        list(describe_algorithm(name))
    assert str(caught.value).startswith(f"there is no algorithm {name!r}; {hint}")


@pytest.mark.parametrize(("arguments", "first"), [([], "grpo          advantages"), (["gspo"], "# GRPO with ratio and clip")])
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], first: str) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "algorithms", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert not caught.value.code
    assert capsys.readouterr().out.startswith(first)
