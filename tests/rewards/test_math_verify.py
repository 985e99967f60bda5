import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from math_verify import parse, verify
from rewards.examples import prompt, rollouts, with_service

from headrace.rewards.math_verify import MathVerifyReward, score

POWER_TOWER = "The answer is $9^{9^{9^{9}}}$"


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        ("The answer is $\\frac{1}{2}$", "0.5", 1.0),
        ("\\boxed{1/2}", "\\frac{1}{2}", 1.0),
        ("\\boxed{0.5}", "$\\frac{1}{2}$", 1.0),
        ("\\boxed{4}", "\\sqrt{16}", 1.0),
        ("so it is \\boxed{8}", "2^3", 1.0),
        ("12/3", "4", 1.0),
        ("12/3", "3/12", 0.0),
        ("1000", "1,000", 1.0),
        ("\\boxed{(x+1)^2}", "x^2 + 2x + 1", 1.0),
        ("$2^{2024}$", "4^{1012}", 1.0),
        ("72", "48 + 24 = 72\n#### 72", 1.0),
        ("\\boxed{5}", "4", 0.0),
        ("", "4", 0.0),
        ("I do not know", "4", 0.0),
    ],
)
def test_equal_values_score_one(completion, gold, reward):
    assert MathVerifyReward()([completion], answer=[gold]) == [reward]


PAIRS = [("x=5", "5"), ("5", "x=5"), ("1<x<3", "(1,3)"), ("(1,3)", "1<x<3"), ("x=5", "x=5"), ("x=5", "y=5")]


@pytest.mark.parametrize(("gold", "answer"), PAIRS)
def test_gold_goes_first(gold, answer):
    expected = verify(gold=parse(f"\\boxed{{{gold}}}"), target=parse(f"\\boxed{{{answer}}}"))
    assert score(f"\\boxed{{{answer}}}", gold) == float(expected)


def test_some_pair_is_asymmetric():
    """Otherwise the test above could not tell the two orders apart."""
    scores = [(score(f"\\boxed{{{answer}}}", gold), score(f"\\boxed{{{gold}}}", answer)) for gold, answer in PAIRS]
    assert any(one_way != other_way for one_way, other_way in scores)


ODD = ["\\boxed{" * 1500, "(" * 10_000, "$" + "{" * 5000, "1" * 10_000, "$" + "1" * 10_000 + "$", "\x00\ud800", "5%%%=", "\\frac" * 2000]
HUGE = [
    POWER_TOWER,
    "9**9**9**9",
    "\\boxed{100000000!}",
    "$2^{-2^{9999}}$",
    "$9^{9999999}$",
    "$\\sin(10^{10^{10}})$",
    "\\boxed{10^{1e400}}",
]


@pytest.mark.parametrize("text", ODD + HUGE, ids=lambda text: ascii(text[:20]))
def test_odd_and_huge_answers_score_zero(text):
    assert score(text, "7") == 0.0


def test_comparison_without_end_stops_after_its_cpu_limit():
    before = time.process_time()
    assert score("$\\sum_{i=1}^{1000000000} i^{i}$", "7") == 0.0
    assert time.process_time() - before < 5
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_same_score_in_every_kind_of_thread_and_in_a_worker():
    async def in_executor() -> list[float]:
        return [await asyncio.to_thread(score, text, "4") for text in ("\\boxed{4}", POWER_TOWER)]

    async def in_worker(service) -> list[float | None]:
        rewards = await service.score(prompt(answer="4"), rollouts("\\boxed{4}", POWER_TOWER))
        return [reward.total for reward in rewards]

    assert [score("\\boxed{4}", "4"), score(POWER_TOWER, "4")] == [1.0, 0.0]
    with ThreadPoolExecutor(1) as thread:
        assert list(thread.map(score, ["\\boxed{4}", POWER_TOWER], ["4", "4"])) == [1.0, 0.0]
    assert asyncio.run(in_executor()) == [1.0, 0.0]
    assert with_service(in_worker, MathVerifyReward()) == [1.0, 0.0]


def test_gold_answer_that_cannot_be_understood_is_an_error():
    with pytest.raises(ValueError, match="no answer in the gold answer ''"):
        score("4", "")
