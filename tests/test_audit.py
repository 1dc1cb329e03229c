"""Known vulnerabilities of the pins: what the tools report is passed on, and no answer is not clean."""

import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError

ROOT = Path(__file__).parents[1]
RECORDED = {
    "dependencies": [
        {
            "name": "six",
            "version": "1.17.0",
            "vulns": [
                {
                    "id": "PYSEC-2099-1",
                    "fix_versions": ["9.9"],
                    "aliases": ["CVE-2099-1"],
                    "description": "An example.",
                }
            ],
        },
        {"name": "idna", "version": "3.20", "vulns": []},
    ],
    "fixes": [],
}
"""Of pip-audit 2.10.1, in front of a database that was made for it."""
SKIPPED = {"name": "six", "skip_reason": "Dependency not found on PyPI and could not be audited"}
ADVISORY = {
    "id": 1, "url": "https://github.com/advisories/GHSA-xxxx", "title": "An example", "severity": "high",
    "vulnerable_versions": "<99.0.0", "cwe": [], "cvss": {"score": 0, "vectorString": None},
}  # fmt: skip


@pytest.fixture
def audit(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import audit

    yield audit
    sys.modules.pop("audit")


def test_what_pip_audit_found(audit):
    assert list(audit.of_python(json.dumps(RECORDED), "pins.txt")) == [
        "pins.txt: six 1.17.0: PYSEC-2099-1, fixed in 9.9"
    ]
    clean = {"dependencies": RECORDED["dependencies"][1:], "fixes": []}
    assert list(audit.of_python(json.dumps(clean), "pins.txt")) == []


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("", "has no report: ConnectionError"),
        ('{"dependencies": []}', "it lists no package"),
        (json.dumps({"dependencies": [SKIPPED, RECORDED["dependencies"][1]]}), "1 of 2 packages"),
    ],
)
def test_no_answer_is_not_clean(audit, report, says):
    with pytest.raises(SparkbookError, match=says):
        list(audit.of_python(report, "pins.txt", "ConnectionError: no network"))


@contextmanager
def registry(reply, status=200):
    """A stand-in for the npm registry's advisories."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            text = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            self.send_error(404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("reply", "status", "found"),
    [
        ({}, 200, []),
        ({"mermaid": [ADVISORY]}, 200, ["package-lock.json: mermaid <99.0.0: high: An example"]),
        ({"error": "down"}, 503, None),
    ],
)
def test_npm_in_front_of_a_registry(audit, monkeypatch, tmp_path, reply, status, found):
    monkeypatch.setenv("npm_config_cache", str(tmp_path))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with registry(reply, status) as address:
        monkeypatch.setenv("npm_config_registry", address)
        if found is None:
            with pytest.raises(SparkbookError, match="npm audit has no report: 503"):
                list(audit.npm_vulnerabilities())
        else:
            assert list(audit.npm_vulnerabilities()) == found


def test_every_pin_is_hashed(audit):
    for name in [*audit.PINS.values(), "requirements-audit.txt"]:
        text = (ROOT / name).read_text("utf-8")
        blocks = text.replace("\\\n", "").splitlines()
        pins = [line for line in blocks if "==" in line]
        assert pins and all("--hash=sha256:" in line for line in pins), name
        assert len(audit.pinned(ROOT / name)) > (1 if "torch" in name else 40), name


def test_what_runs_in_ci_is_pinned_by_commit():
    """A tag can be moved to other code; so can a package without a hash."""
    steps = []
    for file in sorted((ROOT / ".github").rglob("*.y*ml")):
        steps += re.findall(r"^\s*(?:- )?uses:\s*(\S+)", file.read_text("utf-8"), re.MULTILINE)
    assert len(steps) >= 5
    assert [step for step in steps if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step)] == []
    setup = (ROOT / "tools/setup.sh").read_text("utf-8")
    installed = [line.strip() for line in setup.splitlines() if "pip install" in line]
    unpinned = [line for line in installed if "--require-hashes" not in line]
    assert len(installed) >= 4 and all("--no-deps" in line and "-e ." in line for line in unpinned)


def test_a_bill_without_a_pin_is_refused(audit, tmp_path):
    bill = tmp_path / "bill.json"
    bill.write_text('{"components": [{"name": "Six"}, {"group": "@a", "name": "b"}]}')
    audit._check_bill(bill, {"six", "@a/b"})
    with pytest.raises(SparkbookError, match="lacks idna"):
        audit._check_bill(bill, {"six", "idna"})
