import numpy as np
import torch
from training.policies import row

from headrace.training.collation import RowLayout, collate_in_sequence, collate_padded, fit_to_budget, one_sample_a_row
from headrace.types import Sample, SharedPromptRow

CPU = torch.device("cpu")


def test_positions_restart_at_the_prompts_end_and_the_prompt_predicts_every_first_token() -> None:
    samples = (
        Sample(
            completion_ids=np.array([7, 8], np.int32),
            logprobs=np.array([-1, -2], np.float32),
            versions=np.array([3, 4], np.int32),
            advantages=np.array([0.5, 0.25], np.float32),
        ),
        Sample(
            completion_ids=np.array([9], np.int32),
            logprobs=np.array([-3], np.float32),
            versions=np.array([5], np.int32),
            advantages=np.array([-1], np.float32),
        ),
    )
    longer = SharedPromptRow(group_id=0, prompt_ids=(4, 5, 6), samples=samples)
    shorter = SharedPromptRow(group_id=1, prompt_ids=(4,), samples=samples[1:])

    rows = collate_in_sequence([longer, shorter], CPU)

    assert rows.input_ids.tolist() == [[4, 5, 6, 7, 8, 9, 4, 9, *[0] * 56]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, *range(56)]]
    assert rows.layouts == (
        RowLayout(start=0, prompt_length=3, completion_lengths=(2, 1)),
        RowLayout(start=6, prompt_length=1, completion_lengths=(1,)),
        RowLayout(start=8, prompt_length=56, completion_lengths=()),
    )
    assert rows.scored_positions.tolist() == [2, 3, *[6] * 62]
    assert rows.position_of_token.tolist() == [0, 1, 0, 2]
    assert rows.token_ids.tolist() == [7, 8, 9, 9]
    assert rows.behaviour_logprobs.tolist() == [-1, -2, -3, -3]
    assert rows.versions.tolist() == [3, 4, 5, 5]
    assert rows.advantages.tolist() == [0.5, 0.25, -1.0, -1.0]
    assert rows.sample_index.tolist() == [0, 0, 1, 2]
    assert (rows.num_samples, rows.num_loss_tokens, rows.num_useful_tokens, rows.num_padded_tokens) == (3, 4, 8, 64)


def test_one_sample_a_row_is_padded_on_the_right() -> None:
    first, second = row(3, (2,), seed=0), row(1, (1,), seed=1)

    rows = collate_padded([first, second], CPU)

    tokens = [[*each.prompt_ids, *each.samples[0].completion_ids.tolist()] for each in (first, second)]
    assert rows.input_ids.tolist() == [tokens[0], [*tokens[1], 0, 0, 0]]
    assert rows.scored_positions.tolist() == [2, 3, *[5] * 62]
    assert rows.position_of_token.tolist() == [0, 1, 2]
    assert rows.layouts is None
    assert (rows.num_useful_tokens, rows.num_padded_tokens) == (7, 10)


def test_one_sample_a_row_keeps_every_sample() -> None:
    rows = one_sample_a_row([row(3, (2, 4), seed=0), row(2, (1,), seed=1)])
    assert [(each.group_id, each.num_tokens) for each in rows] == [(0, 5), (0, 7), (1, 3)]
    assert [len(each.samples) for each in rows] == [1, 1, 1]


def test_a_pass_holds_as_many_rows_as_the_budget_allows_with_padding() -> None:
    rows = [row(2, (length,), seed=length) for length in (8, 2, 3, 1)]
    passes = fit_to_budget(rows, token_budget=15)
    assert [[each.num_tokens for each in part] for part in passes] == [[3, 4, 5], [10]]


def test_a_row_longer_than_the_budget_is_a_pass_of_its_own() -> None:
    passes = fit_to_budget([row(2, (30,), seed=0), row(2, (31,), seed=1)], token_budget=10)
    assert [len(part) for part in passes] == [1, 1]
