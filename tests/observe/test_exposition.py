"""Reading a scrape: whole or not at all, exact names, full label sets."""

from __future__ import annotations

import pytest

from tests.observe.bodies import VOCABULARY
from tuner._exceptions import ExpositionError
from tuner.observe.exposition import MAX_BODY_BYTES, MAX_SERIES, Scrape, SeriesKey, parse

ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
B03_BODY = """\
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 163
vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="0",model_name="m"} 90
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 73
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 200
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100
"""


def read(text: str | bytes, *names: str) -> Scrape:
    return parse(text, wanted=frozenset(names) or VOCABULARY.sample_names)


def only(scrape: Scrape) -> float:
    (value,) = scrape.samples.values()
    return value


def total(scrape: Scrape, name: str) -> float:
    return sum(value for key, value in scrape.samples.items() if key.name == name)


def reason_of(text: str | bytes) -> str:
    with pytest.raises(ExpositionError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_names_are_exact_never_prefixes() -> None:
    """Per-position and creation series do not leak into the accepted total: 163 of 200, not 326."""
    scrape = read(B03_BODY)
    accepted = total(scrape, ACCEPTED)
    drafted = total(scrape, "vllm:spec_decode_num_draft_tokens_total")
    assert (accepted, accepted / drafted) == (163, 0.815)
    by_position = {
        key.label("position"): value
        for key, value in scrape.samples.items()
        if key.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    }
    assert by_position == {"0": 90, "1": 73}


def test_a_repeated_series_with_one_value_is_kept_once() -> None:
    """A body joined from two keeps the value and says which series stood twice."""
    first = B03_BODY.splitlines()[1]
    scrape = read(B03_BODY + first + "\n")
    assert total(scrape, ACCEPTED) == 163
    assert [key.name for key in scrape.repeated] == [ACCEPTED]
    assert scrape.contradicted == ()


def test_a_repeated_series_with_two_values_is_left_out() -> None:
    """Nobody knows which of two values is right, however often the first one comes back."""
    twice = f'{ACCEPTED}{{model_name="m",engine="0"}} 164\n' + B03_BODY.splitlines()[1] + "\n"
    scrape = read(B03_BODY + twice)
    assert [key.name for key in scrape.contradicted] == [ACCEPTED]
    assert not any(key.name == ACCEPTED for key in scrape.samples)
    assert total(scrape, "vllm:spec_decode_num_drafts_total") == 100


def test_identity_is_the_label_set_in_any_order() -> None:
    """Two orders of one label set are one series; an empty label is no label."""
    scrape = read('a{x="1",y="2"} 5\na{y="2",x="1",z=""} 5\n', "a")
    assert list(scrape.samples) == [SeriesKey("a", frozenset({("x", "1"), ("y", "2")}))]
    assert len(scrape.repeated) == 1


def test_escaped_label_values_are_read() -> None:
    """Quotes, backslashes, line feeds, braces and commas inside a label value are part of it."""
    scrape = read('a{p="say \\"hi\\"",q="c:\\\\d",r="x\\ny",s="}{,= #"} 1\n', "a")
    labels = dict(next(iter(scrape.samples)).labels)
    assert labels == {"p": 'say "hi"', "q": "c:\\d", "r": "x\ny", "s": "}{,= #"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a 1\n", 1),
        ("a 1.5e3\n", 1500),
        ("a\t7\n", 7),
        ("a 5 1395066363000\n", 5),
        ('a{x="1"} 5 -3\n', 5),
        ("a 12\r\n", 12),
        ("\n# just a comment\n\na 3\n\n", 3),
        ("# HELP a b\n# TYPE a counter\na 4\n", 4),
        ("a   9   \n", 9),
    ],
)
def test_forms_of_a_sample(text: str, value: float) -> None:
    """Timestamps, Windows line ends, blank lines, tabs and missing HELP or TYPE are all allowed."""
    assert only(read(text, "a")) == value


def test_openmetrics_bodies_are_read() -> None:
    """OpenMetrics: family without suffix, exemplars, end mark with or without a line feed."""
    text = (
        "# TYPE a counter\n# UNIT a tokens\n"
        'a_total{x="#"} 3 # {trace_id="b"} 0.5 1520879607.789\n'
        "b_total 4 1520879607.789\n# EOF"
    )
    for ending in ("", "\n"):
        scrape = read(text + ending, "a_total", "b_total")
        assert sorted(scrape.samples.values()) == [3, 4]
        assert scrape.kinds["a_total"] == "counter"


def test_values_that_are_no_numbers_stay_visible() -> None:
    """NaN and infinite samples are valid text: what they mean is judged later, per series."""
    scrape = read('a{x="1"} NaN\na{x="2"} +Inf\na{x="3"} -Inf\n', "a")
    assert sorted(map(str, scrape.samples.values())) == ["-inf", "inf", "nan"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   \n\n", "empty"),
        ("<html><body>login</body></html>\n", "html"),
        ('"# TYPE a counter\\na 1\\n"', "json"),
        ('{"status":"success"}\n', "json"),
        ('{\n  "a": 1\n}\n', "json"),
        ('[{"iter": 1}]\n', "json"),
        (b"\x1f\x8b\x08\x00\xff\xfe", "undecodable"),
        ('vllm:spec_decode_num_drafts_total{engine="0"} 12', "truncated"),
        ("a 1\nb 2\n# HELP c some", "truncated"),
        ("a 1\nthis is not a sample\n", "malformed"),
        ('a 1\nb{x="1" 2\n', "malformed"),
        ("a 1\nb\n", "malformed"),
        ("a 1\nb one\n", "malformed"),
        ("a 1\n9b 1\n", "malformed"),
        ("a 1\nb 1 2 3\n", "malformed"),
        ("a 1\n# EOF\nb 2\n", "malformed"),
        (b"\xef\xbb\xbfa 1\n", "malformed"),
    ],
)
def test_an_invalid_body_is_refused_whole(text: str | bytes, reason: str) -> None:
    """A login page, JSON, a cut-off body or one bad line: nothing of it is used, one word says why."""
    assert reason_of(text) == reason


def test_a_cut_value_never_looks_like_a_restart() -> None:
    """1234 cut to 12 is refused, since a counter of 12 would read as a restart."""
    whole = 'vllm:spec_decode_num_drafts_total{engine="0"} 1234\n'
    assert only(read(whole)) == 1234
    for end in range(1, len(whole) - 1):
        with pytest.raises(ExpositionError):
            read(whole[:end])


@pytest.mark.parametrize(
    "line", ['a{x="1"', "a{x=1} 1", 'a{x="1",x="2"} 1', 'a{1x="1"} 1', "a 1e", "a 1_0", "a 0x1"]
)
def test_a_wanted_sample_that_cannot_be_read_refuses_the_body(line: str) -> None:
    """Label sets and values of wanted names are read by the full parser; an error is ours."""
    with pytest.raises(ExpositionError):
        read(f"b 1\n{line}\n", "a")


def test_an_oversized_body_is_refused_before_it_is_read() -> None:
    """16 MiB is the limit, checked on the length alone."""
    with pytest.raises(ExpositionError) as caught:
        read(b"#" * (MAX_BODY_BYTES + 1))
    assert caught.value.reason == "oversize"


def test_unwanted_families_are_dropped() -> None:
    """What nobody asked for does not come through, quoted names included."""
    scrape = read('a 1\nb 2\n{"other.name", x="1"} 3\n', "a")
    assert [key.name for key in scrape.samples] == ["a"]


def test_declared_types_are_told_for_histogram_parts() -> None:
    """A histogram is declared under its family; its count and sum inherit the type."""
    scrape = read("# TYPE h histogram\nh_count 3\nh_sum 4\nfree 1\n", "h_count", "h_sum", "free")
    assert scrape.kinds == {"h_count": "histogram", "h_sum": "histogram"}


def test_long_runs_of_blanks_do_not_slow_the_check() -> None:
    """A hostile line of a megabyte is refused or read in time linear in its length."""
    with pytest.raises(ExpositionError):
        read("a 1" + " " * 10**6 + "x\n")
    assert only(read("a" + " " * 10**6 + "1 # {} 1\n# EOF\n", "a")) == 1


def test_a_label_with_too_many_values_refuses_the_body() -> None:
    """One page of 195 000 wanted series would hold up the round of all engines; told twice counts twice."""
    assert len(
        read("".join(f'a{{x="{i}"}} 1\n' for i in range(MAX_SERIES)) + 'b{x="1"} 1\n' * 9, "a").samples
    )
    for line in ('a{{x="{}"}} 1\n', "a 1\n"):
        with pytest.raises(ExpositionError, match=f"more than {MAX_SERIES} series") as caught:
            read("".join(line.format(i) for i in range(MAX_SERIES + 1)), "a")
        assert caught.value.reason == "too_many_series"
