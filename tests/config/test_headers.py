"""Headers of a metrics server: those that carry secrets belong in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tuner.config import check_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "header",
    [
        "X-Auth-Token: hunter2", "Private-Token: hunter2", "X-Api-Key: hunter2", "DD-API-KEY: hunter2",
        "X-Vault-Secret: hunter2", "X-Password: hunter2", "Set-Cookie: hunter2", "X-Foo: Bearer hunter2",
        "X-Foo: Basic hunter2", "X-Foo: eyJhbGciOi.hunter2.x",
    ],
)  # fmt: skip
def test_headers_that_carry_secrets_are_refused(tmp_path: Path, header: str) -> None:
    """By their name or by what they hold; the remedy is a file, and the value is not repeated."""
    file = tmp_path / "tuner.yaml"
    file.write_text(f"sources: {{prometheus: [{{name: a, url: 'http://h', headers: {{{header}}}}}]}}\n")
    (fault,) = [fault for fault in check_config(file).faults if "headers" in fault.field]
    assert "bearer_token_file" in str(fault)
    assert "hunter2" not in str(fault)


def test_headers_that_carry_no_secret_are_taken(tmp_path: Path) -> None:
    """A tenant, a trace, a kind of answer."""
    file = tmp_path / "tuner.yaml"
    headers = "{X-Scope-OrgID: inference, Accept-Language: en, X-Basic: on, THANOS-TENANT: bearer}"
    file.write_text(f"sources: {{prometheus: [{{name: a, url: 'http://h', headers: {headers}}}]}}\n")
    assert not [fault for fault in check_config(file).faults if "headers" in fault.field]
