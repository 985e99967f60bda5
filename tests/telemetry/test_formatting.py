import pytest

from headrace.telemetry.formatting import count, duration, printable, share, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.44, "8.4 s"),
        (59.96, "1 min 00 s"),
        (187, "3 min 07 s"),
        (3599.7, "1 h 00 min"),
        (7512, "2 h 05 min"),
        (86400 * 3 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (3.14159, "3.14"), (950, "950"), (999.7, "1k"), (12345, "12.3k"), (999_950, "1M"), (4.56e6, "4.56M")]
)
def test_count(number, text):
    assert count(number) == text


def test_share():
    assert share(0.074) == "7 %"


def test_sparkline_spans_lowest_to_highest_of_the_shown_values():
    assert sparkline([9, 0, 1, 2, 7], width=4) == "▁▂▃█"
    assert sparkline([0.5, 0.5], width=4) == "▁▁"
    assert sparkline([], width=4) == ""


def test_printable_keeps_lines_and_letters_but_no_terminal_codes():
    assert printable("é\u3000答\n\t\x1b[2J\rx") == "é\u3000答\n\t\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}x"
