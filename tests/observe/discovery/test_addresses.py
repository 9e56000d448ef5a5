"""Templates of admin addresses: names, never expressions, and nothing that leaves its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner._exceptions import InputError
from tuner.addresses import check_template, fill_template, same_address, split_url
from tuner.observe.discovery import EnginesSpec
from tuner.observe.discovery.found import of_labels

LABELS = {
    "pod": "vllm-0",
    "__meta_kubernetes_pod_ip": "10.1.2.3",
    "six": "fd00::7",
    "bad": "a/b@c",
    "empty": "",
}


@pytest.mark.parametrize(
    ("template", "url", "address"),
    [
        ("http://{{ address }}", "http://10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("http://{{address}}/", "http://10.0.0.5", "http://10.0.0.5:80"),
        ("{{ scheme }}://{{ address }}", "https://h", "https://h:443"),
        ("https://{{ host }}:8443/admin", "http://h:8000/e/1", "https://h:8443/admin"),
        ("http://{{ address }}{{ path }}", "http://h:8000/e/1/", "http://h:8000/e/1"),
        ("http://h:{{ port }}", "http://h:8000", "http://h:8000"),
        ("http://{{ labels.pod }}.engines:80", "http://h", "http://vllm-0.engines:80"),
        ("http://{{ __meta_kubernetes_pod_ip }}:1", "http://h", "http://10.1.2.3:1"),
        ("http://{{ labels.__meta_kubernetes_pod_ip }}:1", "http://h", "http://10.1.2.3:1"),
        ("http://{{ labels.six }}:1", "http://h", "http://[fd00::7]:1"),
        ("http://{{ host }}:1", "http://[::1]:8000", "http://[::1]:1"),
        ("http://gateway/{{ host }}", "http://h", "http://gateway/h"),
    ],
)
def test_templates_are_filled(template: str, url: str, address: str) -> None:
    """The engine's own address and its labels take the places of their names."""
    check_template(template)
    assert fill_template(template, url, LABELS) == address


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("http://{{ labels.bad }}", "label bad cannot be part of an address"),
        ("http://{{ labels.none }}", "label none is not set"),
        ("http://{{ labels.empty }}", "label empty is not set"),
    ],
)
def test_labels_that_do_not_belong_in_an_address(template: str, words: str) -> None:
    """A label that is missing, or would move the address elsewhere, gives none."""
    with pytest.raises(InputError, match=words):
        fill_template(template, "http://h", LABELS)


@given(st.text(max_size=30))
def test_a_label_cannot_lead_elsewhere(value: str) -> None:
    """Whatever a label says, the address stays under the host that the template writes."""
    try:
        address = fill_template("http://{{ labels.x }}.internal:8000/x", "http://h", {"x": value})
    except InputError:
        return
    parts = split_url(address)
    assert parts.hostname is not None
    assert parts.hostname.endswith(".internal")
    assert (parts.port, parts.path, parts.username) == (8000, "/x", None)


@pytest.mark.parametrize(
    "template",
    [
        "http://{{ 7 * 7 }}", "http://{{ address.__class__ }}", "http://{{ labels['pod'] }}",
        "http://{{ labels }}",
        "http://{{ address | upper }}", "http://{% raw %}", "http://{{ address", "http://}}", "{{ address }}",
        "file:///{{ host }}", "http://u:p@{{ host }}", "http://{{ host }}#x", "http://{{ host }}?x", "http://",
    ],
)  # fmt: skip
def test_templates_that_are_refused(template: str) -> None:
    """Expressions, unknown names, credentials and other protocols are refused before they are used."""
    with pytest.raises(InputError):
        check_template(template)


def test_one_address_in_two_spellings() -> None:
    """Case of the host, a default port and a slash at the end make no difference; path and query do."""
    assert same_address("http://H:80/metrics/") == same_address("http://h/metrics")
    assert same_address("https://h:443") == same_address("https://h")
    assert same_address("http://h/a") != same_address("http://h/b")
    assert same_address("http://h/a?x=1") != same_address("http://h/a?x=2")
    assert same_address("http://h:99999") is None


@pytest.mark.parametrize("origin", ["http_sd", "prometheus:main"])
def test_a_password_in_a_target_is_not_repeated(origin: str) -> None:
    """``user:password@host`` is no target; what says so leaves out what stands before the host."""
    spec = EnginesSpec("chat")
    with pytest.raises(InputError, match=r"'\*\*\*@10\.0\.0\.5:8000' is not host:port") as refused:
        of_labels({"__address__": "u:pa55@10.0.0.5:8000"}, spec, origin)
    assert "pa55" not in str(refused.value)
