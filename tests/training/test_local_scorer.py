import asyncio
import threading
from contextlib import nullcontext

import numpy as np
import torch
from training.policies import policy
from training.test_frozen_policy import PROMPT, ROLLOUTS, one_by_one

from headrace.interfaces import LogprobScorer
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.local_scorer import LocalScorer


def scorer() -> LocalScorer:
    frozen = FrozenPolicy(policy(), temperature=1.0, autocast_dtype=None, token_budget=64)
    return LocalScorer("teacher", frozen, threads=nullcontext(lambda: 1))


def test_groups_are_scored_beside_the_event_loop() -> None:
    expected = one_by_one(policy(), 1.0)

    async def scenario() -> None:
        made: LogprobScorer = scorer()
        both = asyncio.gather(made.score(PROMPT, ROLLOUTS), made.score(PROMPT, ROLLOUTS[1:2]))
        turns = 0
        while not both.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 2
        whole, part = await both
        for one, other in zip((*whole.of_rollouts, *part.of_rollouts), (*expected, expected[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert whole.version is None
        assert whole.seconds > 0
        await made.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("teacher")]

    before = torch.get_num_threads()
    asyncio.run(scenario())
    torch.set_num_threads(before)
