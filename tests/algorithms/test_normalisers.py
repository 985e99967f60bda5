import pytest
import torch

from headrace.algorithms.normalisers import BatchCounts, ConstantLength, SequenceMean, TokenMean

NORMALISERS = (TokenMean(), SequenceMean(), ConstantLength(max_completion_length=10))

# Two sequences of 2 and 8 loss tokens, with one prompt token before each that carries no loss.
SEQUENCE_INDEX = torch.tensor([0] * 3 + [1] * 9)
MASK = torch.tensor([False, True, True] + [False] + [True] * 8)
LOSSES = torch.tensor([100.0, 1.0, 3.0] + [100.0] + [5.0] * 8)
COUNTS = BatchCounts(loss_tokens=10, sequences=2)


def normalised(normaliser, sequence_index, mask, losses, counts):
    return torch.where(mask, normaliser.token_weights(sequence_index, mask) * losses, 0.0).sum().item() / normaliser.denominator(counts)


@pytest.mark.parametrize(
    ("normaliser", "loss"),
    [
        (TokenMean(), (1 + 3 + 8 * 5) / 10),
        (SequenceMean(), (2 + 5) / 2),
        (ConstantLength(max_completion_length=10), (1 + 3 + 8 * 5) / 20),
    ],
)
def test_the_three_means_by_hand(normaliser, loss):
    assert normalised(normaliser, SEQUENCE_INDEX, MASK, LOSSES, COUNTS) == pytest.approx(loss)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_sums_over_a_split_give_the_whole_when_divided_once(normaliser):
    whole = normalised(normaliser, SEQUENCE_INDEX, MASK, LOSSES, COUNTS)
    first = normalised(normaliser, SEQUENCE_INDEX[:3], MASK[:3], LOSSES[:3], COUNTS)
    second = normalised(normaliser, SEQUENCE_INDEX[3:] - 1, MASK[3:], LOSSES[3:], COUNTS)
    assert first + second == pytest.approx(whole)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_padding_changes_nothing(normaliser):
    padded = (torch.cat([SEQUENCE_INDEX, torch.tensor([1, 1])]), torch.cat([MASK, torch.tensor([False, False])]))
    losses = torch.cat([LOSSES, torch.tensor([7.0, float("nan")])])
    assert normalised(normaliser, *padded, losses, COUNTS) == normalised(normaliser, SEQUENCE_INDEX, MASK, LOSSES, COUNTS)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_an_empty_batch_gives_zero(normaliser):
    nothing = torch.zeros(0, dtype=torch.long)
    counts = BatchCounts(loss_tokens=0, sequences=0)
    assert normalised(normaliser, nothing, nothing.bool(), nothing.float(), counts) == 0.0
    all_masked = torch.zeros_like(MASK)
    assert normalised(normaliser, SEQUENCE_INDEX, all_masked, LOSSES, counts) == 0.0


def test_masked_truncated_tokens_do_not_dilute_the_token_mean():
    """4 tokens of a complete answer and 12 of a masked one, a loss of 1 each: the mean is 1, not 4/16."""
    sequence_index = torch.tensor([0] * 4 + [1] * 12)
    mask = sequence_index == 0
    assert normalised(TokenMean(), sequence_index, mask, torch.ones(16), BatchCounts(loss_tokens=4, sequences=1)) == 1.0
