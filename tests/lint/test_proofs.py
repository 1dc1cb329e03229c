"""The rules held to what vLLM itself said (`proofs.json`), and the table to its script."""

import pytest
from sparkbook import releases
from sparkbook.lint import proofs
from sparkbook.lint.rules import RULES
from sparkbook.releases.answers import Answer, Judge

TABLE = proofs.load()


def test_no_rule_is_contradicted() -> None:
    assert list(proofs.contradictions(TABLE)) == []


def test_at_least_eighty_rules_are_proved_over_many_releases() -> None:
    assert len(proofs.proved(TABLE)) >= 80
    asked = {version for rows in TABLE.verdicts.values() for version in rows}
    assert len(asked) >= 12 and asked <= set(releases.known())
    assert {"0.19.1", "0.24.0", "0.28.0", "0.32.0"} <= asked


def test_the_table_is_stored_as_it_is_read() -> None:
    assert proofs.FILE.read_text("utf-8") == TABLE.to_json()


def test_a_claim_that_vllm_refuses_is_found_wrong() -> None:
    rule = RULES["FLAG104"]
    accepted = proofs.Proofs({f"{rule.code} fails": {"0.32.0": "accepted"}})
    assert len(list(proofs.contradictions(accepted))) == 1
    refused = proofs.Proofs({f"{rule.code} fails": {"0.32.0": "invalid choice"}})
    assert not list(proofs.contradictions(refused))


def test_no_answer_is_no_verdict() -> None:
    table = proofs.Proofs({})
    judge = Judge(vllm="0.32.0")
    table.add("FLAG101 fails", "0.32.0", Answer(judge=judge, failed="it crashed"))
    assert table.of(RULES["FLAG101"], "fails") == {}
    table.add("FLAG101 fails", "0.32.0", Answer(judge=judge, refused="unrecognized arguments: x"))
    assert table.of(RULES["FLAG101"], "fails") == {"0.32.0": "unrecognized arguments: x"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            {"0.24.0": "no", "0.26.0": "no", "0.28.0": "accepted"},
            'vLLM 0.24.0 to 0.26.0 refuses this: "no". vLLM 0.28.0 accepts it.',
        ),
        (
            {"0.24.0": "accepted", "0.28.0": "accepted"},
            "Not decided by configuration: vLLM 0.24.0 to 0.28.0 starts with this. Reported by the"
            " source.",
        ),
    ],
)
def test_a_rules_page_says_who_refuses(rows: dict[str, str], words: str) -> None:
    rule = RULES["FLAG101"]
    assert proofs.sentence(proofs.Proofs({"FLAG101 fails": rows}), rule) == words
    assert proofs.sentence(proofs.Proofs({}), rule) is None
