import pytest

DECODE = {
    "share_of_roof": {"8": 0.5, "32": 0.6, "64": 0.7},
    "ratios": {"transformers": {"8": 0.1}, "vllm": {"8": 1.0, "32": 2.6, "64": 2.4}, "vllm-defaults": {"64": 2.5}},
}


def checked(results: dict) -> dict[str, tuple[object, object]]:
    from targets import check_targets

    return {target["name"]: (target["found"], target["met"]) for target in check_targets(results)}


def test_the_engine_is_held_against_both_ways_to_run_vllm_and_against_the_products() -> None:
    found = checked({"decode": DECODE})
    assert found["decode over vLLM compiled, with all cores, 8 sequences"] == (1.0, False)
    assert found["decode over vLLM compiled, with all cores, 32 sequences"] == (2.6, True)
    assert found["decode over vLLM compiled, with all cores, 64 sequences"] == (2.4, False)
    assert found["decode over vLLM compiled, as installed, 64 sequences"] == (2.5, True)
    assert found["decode over vLLM compiled, as installed, 32 sequences"] == (None, None)
    assert found["decode as a share of the linear products' rate, 8 sequences"] == (0.5, False)
    assert found["decode as a share of the linear products' rate, 32 sequences"] == (0.6, True)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    failed = {"decode": {"error": "no model"}, "end_to_end": {"ratios_to_trl": {}}}
    assert set(checked(failed).values()) == {(None, None)}


@pytest.mark.parametrize(("peaks", "met"), [((1000, 1040, 1010), True), ((1000, 1010, 1100), False)])
def test_memory_may_not_grow_with_the_batch(peaks: tuple[int, ...], met: bool) -> None:
    found = checked({"training": {"memory": [{"peak_mib": peak} for peak in peaks]}})
    assert found["peak memory of the largest over the smallest batch"] == (max(peaks) / 1000, met)


@pytest.mark.parametrize(("in_flight", "found"), [(9_999, (None, None)), (10_000, (2500, True))])
def test_the_controller_must_be_loaded(in_flight: int, found: tuple[object, object]) -> None:
    load = {"rollouts_a_group": 2, "sinks": "none", "groups_in_flight": in_flight, "groups_per_second": 2500}
    assert checked({"controller": {"controller": [load]}})["controller's groups a second with 10,000 in flight"] == found


@pytest.mark.parametrize(
    ("peer_steps", "accuracies", "found"),
    [(10, {"async": 0.75, "trl": 0.7}, (0.05, True)), (10, {"async": 0.6, "trl": 0.7}, (-0.1, False)),
     (5, {"async": 0.75, "trl": 0.7}, (None, None)),
     (10, {"async": 0.75}, (None, None)), (10, {"async": 0.75, "trl": None}, (None, None))],
)  # fmt: skip
def test_accuracies_are_compared_after_equal_steps(peer_steps: int, accuracies: dict, found: tuple[object, object]) -> None:
    sides = {side: {"accuracy": accuracy} for side, accuracy in accuracies.items()}
    result = {"ratios_to_trl": {}, "sides": sides, "settings": {"steps": 10, "peer_steps": peer_steps}}
    assert checked({"end_to_end": result})["accuracy over TRL's after equal steps (async)"] == found
