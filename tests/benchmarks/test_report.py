import json
from pathlib import Path
from typing import Any

import pytest

RATES = {"headrace": 200.0, "padded": 50.0}
MACHINE = {
    "processor": "Abacus", "cores": 2, "memory_gib": 4, "python": "3.11", "torch": "2", "transformers": "5",
    "commit": "c0ffee", "dirty": True,
}  # fmt: skip
STEP = {"time": 3.0, "seconds": 1.0, "reward": 0.5, "mean_length": 9.0}
SIDE = {
    "seconds_per_step": 2.0, "completions_per_second": 32.0, "completion_tokens_per_second": 200.0, "reward_first_steps": 0.2,
    "reward_last_steps": 0.8, "accuracy": 0.625, "seconds_to_goal": None, "curves": [[STEP, {**STEP, "time": 6.0}]],
}  # fmt: skip
BENCHMARKS: dict[str, Any] = {
    "decode": {
        "tokens_per_second": {"headrace": {"8": 300.0}, "linear products": {"8": 400.0}, "vllm": {"8": 100.0}},
        "share_of_roof": {"8": 0.75},
        "ratios": {"vllm": {"8": 3.0}},
    },
    "training": {
        "quickstart": {"tokens_per_second": RATES, "ratio": 4.0},
        "prompts": [{"prompt": 2000, "predicted_ratio": 6.25, "tokens_per_second": RATES, "ratio": 4.0}],
        "proximal": {"seconds_per_step": {"recompute": 3.5}},
        "memory": [{"groups": 8, "peak_mib": 3210}],
        "publish": {"seconds_per_publish": {"publish": 0.25}, "ratio_beyond_packing": 1.25},
        "settings": {"memory_token_budget": 384},
    },
    "training_options": {
        "shadow": {"seconds_per_step": {"0": 4.0, "3": 5.0}, "more_time": {"3": 0.25}},
        "lora": {
            "seconds_per_step": {"all weights": 4.0, "adapter": 3.0},
            "seconds_per_publish": {"all weights": 0.1, "adapter": 0.01},
            "decoded_tokens_per_second": {"all weights": 900.0, "adapter": 500.0},
        },
    },
    "schedules": {"schedules": {"async": {
        "seconds_per_step": 4.5, "tokens_per_second": 99.0, "trainer_wait_share": 0.25, "engine_wait_share": 0.0, "max_staleness": 1,
    }}},
    "end_to_end": {"sides": {"async": SIDE, "trl": SIDE}, "ratios_to_trl": {"async": 8.5}},
    "end_to_end_few_shot": {"error": "TRL ended with exit code 1"},
    "controller": {"controller": [{
        "rollouts_a_group": 2, "sinks": "none", "groups_in_flight": 11000, "groups_per_second": 2500, "cpu_seconds_per_group": 4e-4,
    }]},
}  # fmt: skip
TARGETS = [{"name": "decode over vLLM", "bound": "≥", "wanted": 5, "found": 3.0, "met": False}]


def written(folder: Path, benchmarks: dict[str, Any]) -> str:
    import report

    whole = {"finished": "today", "machine": MACHINE, "targets": TARGETS, "benchmarks": benchmarks}
    results, page = folder / "results.json", folder / "page.md"
    results.write_text(json.dumps(whole))
    page.write_text(f"# Before\n\n{report.BEGIN}\n\nold\n\n{report.END}\n\n## After\n")
    arguments = ["--results", str(results), "--page", str(page), "--images", str(folder / "images")]
    report.main(arguments)
    once = page.read_text()
    report.main(arguments)
    assert page.read_text() == once
    return once


def test_every_number_gets_its_place(tmp_path: Path) -> None:
    page = written(tmp_path, BENCHMARKS)
    assert page.startswith("# Before")
    assert page.endswith("## After\n")
    assert "old" not in page
    for row in (
        "| decode over vLLM | ≥ 5 | 3 | **missed** |",
        "| headrace | 300 |",
        "| headrace / vllm | 3.00 |",
        "| headrace's share of the linear products | 75% |",
        "| 1 group, a prompt of 2,000, completions of 64 | 200 | 50 | 4.00 | 6.25 |",
        "| recompute | 3.5 |",
        "| 8 | 3,210 |",
        "| publish | 250 |",
        "| more time | — | 25% |",
        "| Decoded tokens per second | 900.0 | 500.0 |",
        "| async | 4.5 | 99 | 25% | 0% | 1 |",
        "| async | 2.0 | 32.0 | 200 | 8.5 | 0.20 → 0.80 | 0.62 | — |",
        "| 2 rollouts, sinks: none | 11,000 | 2,500 | 400 |",
        "It failed: TRL ended with exit code 1",
    ):
        assert row in page.splitlines()
    pictures = {path.name for path in (tmp_path / "images").glob("*.png")}
    assert pictures == {"bench_decode.png", "bench_training.png", "bench_end_to_end.png"}
    assert all(f"](images/{name})" in page for name in pictures)


def test_what_did_not_run_is_left_out(tmp_path: Path) -> None:
    page = written(tmp_path, {"schedules": BENCHMARKS["schedules"]})
    assert "### Schedules" in page
    assert "### Decoding" not in page
    assert list((tmp_path / "images").iterdir()) == []


def test_a_page_without_marks_is_left_alone() -> None:
    from report import with_measurements

    with pytest.raises(AssertionError, match="lacks the marks"):
        with_measurements("# A page", "numbers")


def test_the_shipped_page_has_the_marks() -> None:
    from machine import ROOT
    from report import with_measurements

    assert "\nnumbers\n" in with_measurements((ROOT / "docs" / "benchmarks.md").read_text(), "numbers")
