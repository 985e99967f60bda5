import json
from pathlib import Path

import pytest
from tiny_runs import make_inputs
from transformers import AutoTokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks are scripts that import each other by name, as they do when one is run."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("interleaving.SETTLE_SECONDS", 0)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a chat template and room for longer prompts."""
    inputs = tmp_path_factory.mktemp("benchmarks")
    make_inputs(inputs)
    folder = inputs / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return folder
