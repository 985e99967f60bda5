"""Random models and tokenizers small enough to compare everything with a plain forward pass."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from headrace.types import GenerationRequest, Rollout, Sampling

VOCABULARY = 257
"""The 256 bytes and one special token, as `byte_tokenizer` has them."""

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "llama_tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "mistral_window": MistralConfig(**SHAPE, sliding_window=6),
    "gemma2": Gemma2Config(**SHAPE, head_dim=8, sliding_window=5, layer_types=ALTERNATING, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=5, layer_types=ALTERNATING, query_pre_attn_scalar=8),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512, bos_token_id=None, eos_token_id=None),
}


def tiny_model(name: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model with distinct random weights, large enough that its distributions are far from flat."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.05 if parameter.dim() > 1 else 0.1))
    return model.to(dtype).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, so that a character outside ASCII takes several tokens; id 256 is the special `<end>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def sampling(
    *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, length: int = 12, stop_strings: tuple[str, ...] = ()
) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_completion_length=length, stop_strings=stop_strings)


def request(prompt: range | tuple[int, ...], *, rollouts: int = 1, seed: int = 0, **how: object) -> GenerationRequest:
    return GenerationRequest(prompt_ids=tuple(prompt), num_rollouts=rollouts, seed=seed, sampling=sampling(**how))


def fresh_logprobs(model: PreTrainedModel, asked: GenerationRequest, rollout: Rollout) -> torch.Tensor:
    """What a plain forward pass over prompt and completion says of each sampled token, at the request's temperature."""
    completion = torch.tensor(rollout.completion_ids, dtype=torch.long)
    tokens = torch.cat([torch.tensor(asked.prompt_ids), completion])
    with torch.no_grad():
        logits = model(input_ids=tokens[None], use_cache=False).logits[0, len(asked.prompt_ids) - 1 : -1]
    return (logits.float() / (asked.sampling.temperature or 1.0)).log_softmax(dim=-1).gather(1, completion[:, None])[:, 0]
