from headrace.controller.timing import PhaseTimer


def test_the_phases_of_a_step_add_up_to_its_time() -> None:
    times = iter([10.0, 11.0, 14.0, 14.5, 20.0, 21.0])
    timer = PhaseTimer(lambda: next(times))
    timer.enter("waiting_for_groups")
    timer.enter("computing")
    timer.enter("waiting_for_groups")
    timer.enter("publishing")
    step = timer.finish_step()
    assert (step.other, step.waiting_for_groups, step.computing, step.publishing) == (1.0, 3.0 + 5.5, 0.5, 1.0)
    assert step.total == 11.0


def test_a_step_starts_with_what_came_after_the_last_one() -> None:
    times = iter([0.0, 5.0, 8.0])
    timer = PhaseTimer(lambda: next(times))
    timer.finish_step()
    assert timer.finish_step().other == 3.0


def test_entering_a_phase_tells_how_long_the_last_one_took() -> None:
    times = iter([1.0, 1.5, 4.0])
    timer = PhaseTimer(lambda: next(times))
    assert [timer.enter("computing"), timer.enter("publishing")] == [0.5, 2.5]
