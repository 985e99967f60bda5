import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM


def test_measures_the_engine_beside_a_peer(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import decode

    decode.main(
        ["--model", str(model_folder), "--sequences", "2", "3", "--runs", "1", "--threads", "1", "--peer", "transformers", "--json"]
    )
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    rates = result["tokens_per_second"]
    assert set(rates) == {"headrace", "linear products", "transformers"}
    for sequences in ("2", "3"):
        own, roof, peer = (rates[name][sequences] for name in ("headrace", "linear products", "transformers"))
        assert result["share_of_roof"][sequences] == pytest.approx(own / roof, rel=1e-3)
        assert result["ratios"]["transformers"][sequences] == pytest.approx(own / peer, rel=1e-3)
    assert result["machine"]["torch"] == torch.__version__
    assert result["peers"] == {"transformers": {"transformers": transformers.__version__}}


def test_vllm_needs_its_own_python(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import decode

    with pytest.raises(SystemExit):
        decode.main(["--model", str(model_folder), "--peer", "vllm"])
    assert "--peer-python" in capsys.readouterr().err


def test_products_are_those_of_the_model(model_folder: Path) -> None:
    from linear_products import product_shapes

    # Hidden 32 in 4 heads of 8, 2 of them for keys and values; 64 wide in between; 16 words. Two layers, and the output layer.
    layer = [(32, 32 + 16 + 16), (32, 32), (32, 64 + 64), (64, 32)]
    assert product_shapes(AutoModelForCausalLM.from_pretrained(model_folder)) == [*layer, *layer, (32, 16)]
