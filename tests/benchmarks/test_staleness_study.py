from pathlib import Path

ROW = {
    "time/step": 2.0, "reward": 0.5, "clip_ratio/region_mean": 0.02, "staleness/mean": 0.5, "staleness/max": 1.0,
    "sampling/importance_sampling_ratio/max": 3.0, "ess": 0.9,
}  # fmt: skip


def test_every_cell_of_the_table_is_a_run() -> None:
    from staleness_study import ALGORITHMS, Condition, conditions, parse_arguments

    planned = list(conditions(parse_arguments(["--model", "m", "--staleness", "0", "4", "--seeds", "0", "1", "--steps", "5"])))
    assert len(set(planned)) == len(planned) == 2 * 2 * len(ALGORITHMS)
    assert planned[0] == Condition(max_staleness=0, algorithm="ppo", seed=0, steps=5)


def test_a_page_is_written_from_the_runs(tmp_path: Path) -> None:
    from report import BEGIN, END
    from staleness_report import write_report
    from staleness_study import summary_of

    # A step whose groups have no signal computes nothing, and says nothing of its tokens' weights.
    silent = {name: value for name, value in ROW.items() if name not in ("ess", "sampling/importance_sampling_ratio/max")}
    rows = [{"eval/reward": 0.1}, silent, ROW, {**ROW, "sampling/importance_sampling_ratio/max": 7.0}, {"eval/reward": 0.6}]
    summary = summary_of(rows)
    assert (summary["accuracy_before"], summary["accuracy"], summary["largest_weight"], summary["seconds"]) == (0.1, 0.6, 7.0, 6.0)
    assert summary["ess"] == 0.9
    runs = [
        {"condition": {"max_staleness": staleness, "algorithm": algorithm, "seed": 0, "steps": 5}, **summary}
        for staleness, algorithm in ((4, "a3po"), (0, "ppo"), (4, "ppo"))
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    machine = dict.fromkeys(("cores", "processor", "memory_gib", "python", "torch", "transformers", "commit"), "x") | {"dirty": False}
    write_report({"runs": runs, "machine": machine, "finished": "today"}, page=page, picture=tmp_path / "picture.png")
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ") and "accuracy" not in line]
    assert [row.split("|")[1].strip() for row in rows] == ["0, PPO, no correction", "4, PPO, no correction", "4, a3po"]
    assert (tmp_path / "picture.png").stat().st_size > 1000
