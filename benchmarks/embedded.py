"""headrace's engine as the benchmarks use it: every completion runs to its length limit."""

from contextlib import nullcontext

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.rollout.embedded_engine import EmbeddedEngine


def embedded_engine(
    model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, sequences: int, sequence_length: int, threads: int
) -> EmbeddedEngine:
    """An engine that takes the model over."""
    return EmbeddedEngine(
        model,
        tokenizer=tokenizer,
        stop_token_ids=(),
        max_concurrent_sequences=sequences,
        max_sequence_length=sequence_length,
        interruption="recompute",
        threads=nullcontext(lambda: threads),
        stall_seconds=600,
    )
