"""Whole runs with a teacher or a reference: another tiny model, here or on a server, a snapshot of the policy, the policy as it began."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from teacher_server import TeacherServer, running
from tiny_runs import WORDS, make_inputs, parameters, tiny_recipe
from training.policies import relative_gap
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.config.loading import dump_recipe
from headrace.config.model_facts import read_model_facts
from headrace.errors import ModelError, PartDiedError, RecipeError
from headrace.launch.adapters import load_adapter, merge_adapter
from headrace.launch.export import export
from headrace.launch.model_loading import load_policy
from headrace.launch.run import RunResult, train

QUIET = Console(quiet=True)
DISTILL: dict[str, dict[str, Any]] = {
    "algorithm": {"name": "distill"},
    "rewards": {"functions": []},
    "training": {"max_steps": 12, "learning_rate": 3e-3},
}


def run(folder: Path, name: str = "run", *, resume: bool = False, **sections: dict[str, Any]) -> RunResult:
    recipe = tiny_recipe(folder, **sections | {"run": {"output_dir": str(folder / name)}})
    return train(recipe, base_folder=folder, resume=resume, console=QUIET)


def other_model(folder: Path) -> dict[str, Any]:
    """A local teacher with other random weights, whose distributions are less even than the policy's."""
    make_inputs(folder / "other", seed=1)
    sharpen(folder / "other" / "model", 6)
    return {"type": "local", "name_or_path": str(folder / "other" / "model")}


def sharpen(path: Path, factor: float) -> None:
    """Make a model's distributions less even."""
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.lm_head.weight.mul_(factor)
    model.save_pretrained(path)


def metrics(result: RunResult) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "time/step" in row]


def test_the_policy_comes_nearer_to_its_teacher_without_any_reward(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    result = run(tmp_path, teacher=other_model(tmp_path), sampling={"temperature": 0.8}, data={"held_out": 2}, **DISTILL)
    distances = [row["distillation/reverse_kl"] for row in metrics(result)]
    assert np.mean(distances[:3]) > 0.1
    assert np.mean(distances[-3:]) < 0.7 * np.mean(distances[:3])
    assert all("reward" not in row and row["scoring_share"] > 0 for row in metrics(result))
    assert result.summary["accuracy_before"] is None
    assert result.summary["reverse_kl_last"] == pytest.approx(distances[-1])
    assert result.summary["ledger"]["trained"] == 12 * 4


def test_what_is_learned_is_the_teachers_log_probability_less_the_policys(tmp_path: Path) -> None:
    """The saved advantages of the first step, computed again with transformers alone."""
    make_inputs(tmp_path)
    teacher = other_model(tmp_path)
    result = run(tmp_path, teacher=teacher, **DISTILL | {"training": {"max_steps": 1}})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in (tmp_path / "model", teacher["name_or_path"])]
    for row in pq.read_table(result.folder / "samples" / "step_000001.parquet").to_pylist():
        if row["finish_reason"] == "stop":
            completion = [*tokenizer(row["completion"])["input_ids"], tokenizer.eos_token_id]
        else:
            completion = tokenizer(row["completion"])["input_ids"]
        if len(completion) != row["num_tokens"]:
            continue  # An end token in the middle of the text is not written out.
        prompt = tokenizer(row["prompt"])["input_ids"]
        ids = torch.tensor([[*prompt, *completion]])
        with torch.no_grad():
            ours, theirs = (model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1] for model in models)
        gaps = (ours - theirs).gather(1, ids[0, len(prompt) :, None])
        assert row["reverse_kl"] == pytest.approx(float(gaps.mean()), abs=1e-3)
        assert row["advantage"] == pytest.approx(-row["reverse_kl"], abs=1e-5)


def test_rewards_and_a_teacher_together(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    result = run(tmp_path, teacher=other_model(tmp_path), algorithm={"distillation_coefficient": 0.2}, training={"max_steps": 2})
    for row in metrics(result):
        assert {"reward", "distillation/reverse_kl"} <= row.keys()
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in pq.read_table(result.folder / "samples" / "step_000001.parquet").to_pylist():
        groups.setdefault(row["group_id"], []).append(row)
    for rows in groups.values():
        rewards = np.array([row["reward"] for row in rows])
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4) - 0.2 * np.array([row["reverse_kl"] for row in rows])
        assert [row["advantage"] for row in rows] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_snapshot_of_the_policy_is_taken_every_so_many_steps_and_survives_a_resume(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    sections: dict[str, dict[str, Any]] = {
        "teacher": {"type": "self", "snapshot_every_steps": 4},
        "algorithm": {"distillation_coefficient": 0.5},
        "training": {"max_steps": 9, "learning_rate": 3e-3},
        "checkpoint": {"every_steps": 6},
    }
    whole = run(tmp_path, "whole", **sections)
    assert [row["distillation/teacher_version"] for row in metrics(whole)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    distances = [abs(row["distillation/reverse_kl"]) for row in metrics(whole)]
    assert max(distances[0], distances[4], distances[8]) < 1e-5  # The snapshot is the policy that sampled.
    assert min(max(distances[1:4]), max(distances[5:8])) > 1e-4

    export(whole.folder / "checkpoint-6", tmp_path / "exported")
    assert {file.name for file in (tmp_path / "exported").iterdir()} == {file.name for file in whole.model_folder.iterdir()}
    assert read_model_facts(whole.folder / "checkpoint-6") == read_model_facts(whole.model_folder)

    resumed = resumed_from_the_checkpoint(tmp_path, whole, **sections)
    assert [row["distillation/teacher_version"] for row in metrics(resumed)][6:] == [4, 4, 8]
    assert relative_gap(parameters(whole.model_folder), parameters(resumed.model_folder)) < 1e-5


def resumed_from_the_checkpoint(folder: Path, whole: RunResult, **sections: dict[str, Any]) -> RunResult:
    """The run again from the checkpoint before its last one."""
    parts = folder / "parts"
    shutil.copytree(whole.folder, parts)
    for name in ("checkpoint-9", "final"):
        shutil.rmtree(parts / name)
    (parts / "summary.json").unlink()
    return run(folder, "parts", resume=True, **sections)


def test_an_adapter_and_its_snapshot_survive_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    make_inputs(tmp_path)
    sections: dict[str, dict[str, Any]] = {
        "lora": {"rank": 4, "alpha": 8.0},
        "teacher": {"type": "self", "snapshot_every_steps": 4},
        "algorithm": {"distillation_coefficient": 0.5},
        "training": {"max_steps": 9, "learning_rate": 2e-2},
        "checkpoint": {"every_steps": 6},
    }
    whole = run(tmp_path, "whole", **sections)
    resumed = resumed_from_the_checkpoint(tmp_path, whole, **sections)
    before, after = ([row["distillation/reverse_kl"] for row in metrics(each)] for each in (whole, resumed))
    assert [row["distillation/teacher_version"] for row in metrics(resumed)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert max(abs(before[0]), abs(before[4]), abs(before[8])) < 1e-5  # The snapshot is the policy that sampled.
    assert abs(before[6]) > 1e-4
    assert after == pytest.approx(before, abs=1e-5)
    adapters = [load_file(each.model_folder / "adapter_model.safetensors") for each in (whole, resumed)]
    assert relative_gap(*adapters) < 1e-5


def test_an_adapter_learns_from_a_teacher_while_generation_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    make_inputs(tmp_path)
    sharpen(tmp_path / "model", 6)  # An output layer that stays as it is must be large, or an adapter could not make a token likely.
    sections = {"schedule": {"type": "async", "max_staleness": 2}, "lora": {"rank": 4, "alpha": 8.0}}
    training = {"max_steps": 60, "learning_rate": 2e-2}
    result = run(tmp_path, teacher=other_model(tmp_path), **sections, **DISTILL | {"training": training})
    distances = [row["distillation/reverse_kl"] for row in metrics(result)]
    assert np.mean(distances[-10:]) < 0.6 * np.mean(distances[:10])
    assert (result.summary["finished"], result.summary["steps"], result.summary["ledger"]["trained"]) == (True, 60, 60 * 4)
    assert 1 <= result.summary["worst_staleness"] <= 2
    assert {file.name for file in result.model_folder.glob("*.safetensors")} == {"adapter_model.safetensors"}


def serving(folder: Path) -> TeacherServer:
    """A server that has a model, and a policy's words."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()

    @torch.no_grad()
    def logprobs(ids: list[int]) -> list[float]:
        scores = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    return TeacherServer(logprobs=logprobs, text=lambda token: f" {WORDS[token]}")


@pytest.mark.parametrize("form", ["prompt_logprobs", "echo"])
def test_a_model_on_a_server_teaches_what_it_teaches_here(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_inputs(tmp_path)
    local = other_model(tmp_path)
    sections = DISTILL | {"training": {"max_steps": 4, "learning_rate": 3e-3}}
    with running(serving(Path(local["name_or_path"]))) as server:
        asked = run(tmp_path, "server", teacher={"type": "server", "url": server.url, "form": form}, **sections)
    here = run(tmp_path, "here", teacher=local, **sections)
    assert len(server.requests) == 1 + 4 * 4 * 4  # (the first one before the run)
    found, expected = ([row["distillation/reverse_kl"] for row in metrics(each)] for each in (asked, here))
    assert found == pytest.approx(expected, abs=1e-4)
    assert relative_gap(parameters(here.model_folder), parameters(asked.model_folder)) < 1e-4


def test_a_server_that_fails_in_the_middle_ends_the_run_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_inputs(tmp_path)
    with running(serving(tmp_path / "model")) as server:

        def fail_from_now_on(choice: dict[str, Any]) -> None:
            if len(server.requests) == 20:
                server.first_answers = [(400, {"error": "too long"}), *[server.stall] * 20]

        server.change = fail_from_now_on
        start = time.perf_counter()
        with pytest.raises(PartDiedError, match=r"refused with status 400 .*too long"):
            run(tmp_path, teacher={"type": "server", "url": server.url}, **DISTILL)
    assert time.perf_counter() - start < 20  # Requests that stall do not keep it.


def test_ctrl_c_ends_the_question_to_a_server_that_says_nothing_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_inputs(tmp_path)
    with running(serving(tmp_path / "model")) as server:
        server.first_answers = [server.stall]
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(dump_recipe(tiny_recipe(tmp_path, teacher={"type": "server", "url": server.url}, **DISTILL)))
        with subprocess.Popen([sys.executable, "-m", "headrace", "train", str(recipe)], stdout=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while not server.requests:
                assert time.monotonic() < deadline, "waited 60 s for the question"
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGINT)
            start = time.monotonic()
            said, _ = process.communicate(timeout=60)
        assert time.monotonic() - start < 5
    assert process.returncode == 130
    assert "asking the teacher at http://127.0.0.1" in said


def test_a_penalty_on_rewards_keeps_the_policy_near_to_the_one_it_began_with(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    reached = {}
    for beta in (0.01, 1.0):
        algorithm = {"beta": beta, "kl_in": "reward", "kl_estimator": "k1", "advantage": {"type": "group", "scale_rewards": "none"}}
        result = run(tmp_path, f"beta{beta}", algorithm=algorithm, training={"max_steps": 12, "learning_rate": 3e-3})
        rows = metrics(result)
        assert abs(rows[0]["reference_kl"]) < 1e-3
        reached[beta] = float(np.mean([row["reference_kl"] for row in rows[-3:]]))
    assert reached[1.0] < 0.5 * reached[0.01]


def test_a_teacher_with_another_vocabulary_is_refused_before_training(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    teacher = other_model(tmp_path)
    file = Path(teacher["name_or_path"]) / "tokenizer.json"
    file.write_text(file.read_text().replace('"what"', '"who"'))
    with pytest.raises(ModelError, match="2 of 16 tokens differ, for instance 'what'"):
        run(tmp_path, teacher=teacher, **DISTILL)


def test_rewards_may_be_missing_only_where_nothing_is_learned_from_them(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    with pytest.raises(RecipeError, match=r"rewards\.functions is empty"):
        run(tmp_path, rewards={"functions": []})


def test_a_teacher_may_be_an_adapter(tmp_path: Path) -> None:
    """What another run with LoRA left: it answers as the merged model does, so that its own policy is at no distance from it."""
    pytest.importorskip("peft")
    make_inputs(tmp_path)
    lora: dict[str, Any] = {"lora": {"rank": 4}, "training": {"max_steps": 2, "learning_rate": 0.05}}
    adapter = run(tmp_path, "adapter", **lora).model_folder
    assert (adapter / "adapter_config.json").is_file()
    teacher = {"type": "local", "name_or_path": str(adapter)}
    base = run(tmp_path, "base", teacher=teacher, **DISTILL | {"training": {"max_steps": 1}})
    assert abs(metrics(base)[0]["distillation/reverse_kl"]) > 1e-3
    merged = load_policy(tmp_path / "model", dtype=torch.float32)
    load_adapter(merged, adapter, base=tmp_path / "model")
    merge_adapter(merged)
    shutil.copytree(tmp_path / "model", tmp_path / "merged")
    merged.save_pretrained(tmp_path / "merged")
    sections = DISTILL | {"training": {"max_steps": 1}, "model": {"name_or_path": str(tmp_path / "merged")}}
    same = run(tmp_path, "same", teacher=teacher, **sections)
    assert abs(metrics(same)[0]["distillation/reverse_kl"]) < 1e-5


def test_a_teacher_with_too_few_positions_is_refused_before_training(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    teacher = other_model(tmp_path)
    file = Path(teacher["name_or_path"]) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 8}))
    with pytest.raises(ModelError, match=r"has 8 positions, but a prompt with its completion may have 1\d tokens"):
        run(tmp_path, teacher=teacher, **DISTILL)
