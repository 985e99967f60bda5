import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM


def test_measures_every_option(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import training_options

    training_options.main(["--model", str(model_folder), "--runs", "1", "--threads", "1", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    per_step = result["shadow"]["seconds_per_step"]
    assert set(per_step) == {"0", "1", "3", "6"}
    assert result["shadow"]["more_time"]["6"] == pytest.approx(per_step["6"] / per_step["0"] - 1, abs=1e-3)
    for measured in ("seconds_per_step", "seconds_per_publish", "decoded_tokens_per_second"):
        assert set(result["lora"][measured]) == {"all weights", "adapter"}


def test_samples_are_a_little_away_from_the_model(model_folder: Path) -> None:
    """As they are when a version older than the present one drew them."""
    from training_options import DRIFT, present_logprobs, stale_rows

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    rows = stale_rows(model)
    present = [logprobs for of_row in present_logprobs(model, rows) for logprobs in of_row]
    samples = [sample for row in rows for sample in row.samples]
    drift = np.concatenate([sample.logprobs - logprobs for sample, logprobs in zip(samples, present, strict=True)])
    assert 0.9 * DRIFT < drift.std() < 1.1 * DRIFT
    assert all(set(sample.versions.tolist()) == {0, 1} for sample in samples)
