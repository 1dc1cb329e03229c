"""Texts as HTML and Markdown."""

import pytest
from sparkbook.util import markup


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the disk is full", "The disk is full"),
        ("vLLM is several processes", "vLLM is several processes"),
        ("cuBLAS found no kernel", "cuBLAS found no kernel"),
        ("--max-num-seqs is low", "--max-num-seqs is low"),
        ("nvidia-smi shows it", "nvidia-smi shows it"),
        ("`vllm serve` ended", "`vllm serve` ended"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name(text, sentence):
    assert markup.capital(text) == sentence


def test_code_is_marked_and_everything_else_escaped():
    assert markup.code("`a<b` & c") == "<code>a&lt;b</code> &amp; c"
    link = '<a href="https://a.org/b">a.org/b</a>'
    assert markup.linked("see https://a.org/b.") == f"see {link}."


def test_a_cell_holds_no_bar_and_no_line_break():
    assert markup.cell("a|b\nc") == "a\\|b c"
    assert markup.without_fields("{size} GiB of {total}") == "… GiB of …"
