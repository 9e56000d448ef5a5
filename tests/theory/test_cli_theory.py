"""``tuner theory``: the JSON contract, readable text, and one-line errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tuner.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

SPEEDUP = "speedup --target-params 70e9 --flops 989e12 --bandwidth 3.35e12 --draft-len 4 --batch 1,64,256"
CROSSOVER = "crossover --flops 989e12 --bandwidth 3.35e12"
PROFILE = "draft-len --profile 0.80,0.72,0.66,0.60,0.55 --draft-cost 0.1"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """Run ``tuner theory ...`` in process: exit code, stdout, stderr."""

    def call(arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["theory", *arguments.split(" ")])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return call


def _document(run: Callable[[str], tuple[int, str, str]], arguments: str) -> dict[str, Any]:
    """Return the JSON answer of a call that must succeed."""
    code, out, err = run(f"{arguments} --json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_speedup_json(run: Callable[[str], tuple[int, str, str]]) -> None:
    """Keys of the contract; acceptances are keyed as numbers are written."""
    document = _document(run, f"{SPEEDUP} --draft-params 1e9 --acceptance 0.9,0.80,.6,1")

    assert round(document["crossover_tokens"]) == 295
    assert [row["batch"] for row in document["rows"]] == [1, 64, 256]
    first = document["rows"][0]["speedup"]
    assert list(first) == ["0.9", "0.8", "0.6", "1"]
    assert f"{first['0.8']:.2f}" == "3.18"
    assert f"{document['rows'][2]['speedup']['0.8']:.2f}" == "0.77"


def test_speedup_without_a_drafter(run: Callable[[str], tuple[int, str, str]]) -> None:
    """No draft parameters is an n-gram drafter, which costs nothing."""
    document = _document(run, f"{SPEEDUP} --acceptance 0.8")

    assert document["rows"][0]["speedup"]["0.8"] == pytest.approx(3.3616)


def test_draft_len_json(run: Callable[[str], tuple[int, str, str]]) -> None:
    """Keys of the contract, the best and the recommended draft length."""
    document = _document(run, PROFILE)

    row = next(row for row in document["rows"] if row["draft_len"] == 4)
    assert f"{row['expected_tokens']:.3f} {row['step_cost']:.1f} {row['speedup']:.2f}" == "2.984 1.4 2.13"
    assert (document["best"], document["recommended"]) == (4, 3)


@pytest.mark.parametrize(
    ("arguments", "tokens", "factor"),
    [
        (CROSSOVER, 295, 1),
        ("crossover --flops 989T --bandwidth 3.35T --dtype int4", 74, 1),
        ("crossover --flops 1979e12 --bandwidth 3.35e12 --dtype fp8", 295, 1),
        (f"{CROSSOVER} --total-params 8B --active-params 1B", 2362, 8),
        ("crossover --hardware h100-sxm", 295, 1),
    ],
)
def test_crossover_json(
    run: Callable[[str], tuple[int, str, str]], arguments: str, tokens: int, factor: float
) -> None:
    """Keys of the contract over weight formats and sparsity; numbers may carry suffixes."""
    document = _document(run, arguments)

    assert (round(document["crossover_tokens"]), document["moe_factor"]) == (tokens, factor)


@pytest.mark.parametrize("verb", ["crossover", f"{SPEEDUP} --acceptance 0.8"])
@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ("--hardware h100-sxm --dtype fp8", True),
        ("--hardware h100-sxm --dtype int4", True),
        ("--hardware h100-sxm --dtype bf16", False),
        ("--hardware h100-sxm --flops 1979e12 --dtype fp8", False),
        ("--flops 1979e12 --bandwidth 3.35e12 --dtype fp8", False),
    ],
)
def test_the_math_of_a_sheet_is_named(
    run: Callable[[str], tuple[int, str, str]], verb: str, options: str, noted: bool
) -> None:
    """A sheet's rate is that of bf16 math: with smaller weights the answer says so, with a given rate not."""
    arguments = f"{verb.replace('--flops 989e12 --bandwidth 3.35e12 ', '')} {options}"

    assert bool(_document(run, arguments)["notes"]) is noted
    assert ("bf16 math" in run(arguments)[1]) is noted


def test_crossover_with_context(run: Callable[[str], tuple[int, str, str]]) -> None:
    """32 requests of 8000 tokens read 84 GB beside 140 GB of weights: the crossover is 1.6 times as high."""
    document = _document(
        run,
        f"{CROSSOVER} --total-params 70e9 --kv-bytes-per-token 327680 --context-tokens 8000 --batch 32",
    )

    assert document["kv_factor"] == pytest.approx(1 + 327_680 * 8000 * 32 / 140e9)
    assert document["crossover_tokens"] == pytest.approx(295.2 * document["kv_factor"], rel=1e-3)


def test_largest_batch_against_the_crossover(run: Callable[[str], tuple[int, str, str]]) -> None:
    """64 sequences at K = 4 put 320 tokens in flight, past the crossover; 59 would not."""
    against = _document(run, f"{CROSSOVER} --max-num-seqs 64 --draft-len 4")["against"]

    assert against == {
        "tokens_per_request": 5,
        "largest_batch": 59,
        "tokens_in_flight": 320,
        "memory_bound": False,
        "largest_draft_len": 3,
    }


def test_long_context_has_no_largest_batch(run: Callable[[str], tuple[int, str, str]]) -> None:
    """Where no batch turns compute-bound the answer is null with words, never a number."""
    arguments = (
        f"{CROSSOVER} --total-params 8e9 --kv-bytes-per-token 131072 --context-tokens 32000 --draft-len 4"
    )

    assert _document(run, arguments)["against"]["largest_batch"] is None
    assert "no batch turns compute-bound" in run(arguments)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{SPEEDUP} --acceptance 0.8", ["tokens in flight", "compute", "3.36x", "upper bound"]),
        (PROFILE, ["2.984", "0.228", "Best: 4. Recommended: 3"]),
        ("draft-len --profile 0.3 --draft-cost 0.5", ["No draft length beats plain decoding"]),
        (f"{CROSSOVER} --max-num-seqs 16 --draft-len 3", ["295 tokens", "memory-bound", "upper bound"]),
        (f"{CROSSOVER} --total-params 8e9 --active-params 1e9", ["Mixture of experts: 8 times"]),
        ("--help", ["Examples:", "speedup", "draft-len", "crossover"]),
        ("speedup --help", ["Examples:"]),
        ("draft-len --help", ["Examples:"]),
        ("crossover --help", ["Examples:", "int4"]),
    ],
)
def test_text(run: Callable[[str], tuple[int, str, str]], arguments: str, words: list[str]) -> None:
    """The text answers carry the numbers, the verdict and the caveat; help carries examples."""
    code, out, err = run(arguments)

    assert (code, err) == (0, "")
    for word in words:
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{SPEEDUP} --acceptance 1.1", "--acceptance: 1.1 must be a number from 0 to 1"),
        (f"{SPEEDUP} --acceptance nan", "--acceptance: 'nan'"),
        (f"{SPEEDUP} --acceptance -0.5", "--acceptance: '-0.5'"),
        (f"{SPEEDUP} --acceptance 0.8,,0.9", "--acceptance: ''"),
        (f"{SPEEDUP} --acceptance 0.8 --batch 0", "--batch: 0 must be a whole number from 1 to 1000000"),
        (f"{SPEEDUP} --acceptance 0.8 --batch 1.5", "--batch: 1.5 must be a whole number"),
        (f"{SPEEDUP} --acceptance 0.8 --draft-len 1e9", "--draft-len: 1e9 must be a whole number"),
        (f"{SPEEDUP} --acceptance 0.8 --tree-tokens 2", "tree of depth 4"),
        (f"{SPEEDUP} --acceptance 0.8 --flops -5", "--flops: '-5'"),
        (f"{SPEEDUP} --acceptance 0.8 --flops 989", "give dense FLOP/s, as in 989e12"),
        (f"{SPEEDUP} --acceptance 0.8 --flops 1e999", "--flops: '1e999'"),
        (f"{SPEEDUP} --acceptance 0.8 --active-params 80e9", "swap them"),
        ("draft-len --profile rubbish --draft-cost 0.1", "--profile: 'rubbish'"),
        ("draft-len --profile 80,72 --draft-cost 0.1", "give a ratio, as in 0.8"),
        (f"draft-len --profile {','.join(['0.5'] * 1025)} --draft-cost 0.1", "from 0 to 1024"),
        ("draft-len --profile 0.8 --draft-cost inf", "--draft-cost: 'inf'"),
        ("crossover", "give --flops and --bandwidth, or --hardware"),
        ("crossover --hardware abacus", "h100-sxm"),
        (f"{CROSSOVER} --hardware h100", "not all three"),
        (f"{CROSSOVER} --dtype bf17", "--dtype: unknown weight format 'bf17'"),
        (f"{CROSSOVER} --active-params 1e9", "needs --total-params"),
        (f"{CROSSOVER} --kv-bytes-per-token 1e5 --context-tokens 10", "needs --total-params"),
        (f"{CROSSOVER} --context-tokens 10", "belong together"),
    ],
)
def test_bad_input(run: Callable[[str], tuple[int, str, str]], arguments: str, words: str) -> None:
    """Bad input is one line on stderr that names the option and the remedy, and exit code 2."""
    code, out, err = run(arguments)

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_boxed_table_on_a_terminal(
    run: Callable[[str], tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal the table is drawn with lines; elsewhere it is plain text."""
    plain = run(PROFILE)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert "━" not in plain
    assert "━" in run(PROFILE)[1]
