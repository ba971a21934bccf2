from dekrr.lab.commands import progress


def test_a_line_a_minute_where_there_is_no_terminal(capsys, monkeypatch):
    now = iter([0.0, 10.0, 30.0, 80.0, 400.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.progress_of("table", 8) as show:
        show(1, "houses DKLA")
        show(2, "houses DKLA")
        show(4, "energy DKLA")
        show(8, "energy ours")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "table houses DKLA: 1 of 8 done in 10 s, about 70 s left",
        "table energy DKLA: 4 of 8 done in 80 s, about 80 s left",
        "table energy ours: 8 of 8 done in 7 min, about 0 s left",
    ]
