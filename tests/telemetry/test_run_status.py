from telemetry.small_events import ledger, mixed_group, step_finished, timings

from headrace.telemetry.events import GroupAdmitted, GroupDiscarded, GroupGenerated, GroupReady, RunStarted
from headrace.telemetry.run_status import RunStatus


def observed(*events):
    status = RunStatus()
    for event in events:
        status.observe(1.0, event)
    return status


def started(version=0, last_version=10):
    return RunStarted(version=version, last_version=last_version, slots=4, max_staleness=1, prompts_per_step=1)


def admitted(group_id):
    return GroupAdmitted(group_id=group_id, epoch=0, row=group_id, version=0, deadline=1)


def test_groups_move_from_state_to_state():
    status = observed(*(admitted(number) for number in range(5)))
    for number in (0, 1, 2, 3):
        status.observe(2.0, GroupGenerated(group_id=number, num_tokens=9))
    for number in (0, 1):
        status.observe(3.0, GroupReady(group_id=number, mean_reward=0.5, num_failed=number, error=None))
    status.observe(4.0, GroupDiscarded(group_id=2, reason="no_reward", detail=None))
    assert (status.generating, status.scoring, status.ready) == ({4}, {3}, {0, 1})
    assert status.discarded == {"no_reward": 1}
    assert status.failed_rewards == 1
    status.observe(5.0, step_finished(1, [mixed_group(0)], books=ledger(discarded={"no_reward": 1})))
    assert (status.ready, status.trained_groups, status.version) == ({1}, 4, 1)


def test_time_left_follows_the_pace_of_the_steps():
    steps = [step_finished(version, spent=timings(waiting=seconds, computing=1)) for version, seconds in ((4, 1.0), (5, 5.0))]
    # Steps of 3 s and 7 s; five steps are left of ten.
    assert observed(started(version=3), *steps).seconds_left == 25
    assert observed(started()).seconds_left is None
    assert observed(started(last_version=None), *steps).seconds_left is None
