from telemetry.small_events import engine, evaluation, step_finished

from headrace.telemetry.metrics_log import MetricsLog, read_metrics


def log_steps(path, versions, *, version=0):
    log = MetricsLog(path, version=version)
    for number in versions:
        log.handle(float(number), step_finished(number, stats=engine(generated=10 * number)))
    log.close()


def test_one_row_for_a_step_and_for_an_evaluation(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.handle(1.0, evaluation(0, 0.25))
    log.handle(2.0, step_finished(1, metrics={"loss": 0.5}))
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    log.close()
    assert first == {"step": 0, "time": 1.0, "eval/reward": 0.25, "eval/mean_length": 3.0, "time/evaluation": 2.0}
    assert (second["step"], second["time"], second["loss"], second["reward"]) == (1, 2.0, 0.5, 0.5)


def test_resume_has_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log_steps(path, [1, 2, 3, 4])
    path.write_bytes(path.read_bytes()[:-3])
    log_steps(path, [3, 4, 5], version=2)
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_rates_are_differences_and_a_resumed_run_counts_its_new_engine_from_zero(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log_steps(path, [1, 2])
    log_steps(path, [3], version=2)
    # Engine totals 10, 20 and then 30, over steps of 4 s.
    assert [row["tokens_per_second/generated"] for row in read_metrics(path)] == [2.5, 2.5, 7.5]
