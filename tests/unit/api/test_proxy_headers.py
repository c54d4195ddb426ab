"""Which headers and cookies pass the proxy."""

from __future__ import annotations

from typing import Any

import pytest

from api.errors import Forbidden
from api.proxy import headers
from api.proxy.headers import HeadersTooLarge, check_origin, check_size, to_browser, to_task


def scope(*sent: tuple[str, str], method: str = "GET", kind: str = "http", scheme: str = "http") -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in sent]
    return {
        "type": kind,
        "method": method,
        "scheme": scheme,
        "headers": raw,
        "query_string": b"",
        "client": ("10.0.0.9", 1),
    }


@pytest.mark.parametrize(
    "name",
    ["connection", "keep-alive", "te", "transfer-encoding", "upgrade", "proxy-authorization", "x-private",
     "grpc-metadata-x-user-token", "grpc-metadata-x-allocation-token", "authorization"],
)  # fmt: skip
def test_what_belongs_to_one_connection_or_to_us_does_not_reach_a_task(name: str) -> None:
    sent = to_task(
        scope(("connection", "close, X-Private"), (name, "secret"), ("x-kept", "1")), keeps_authorization=False
    )
    assert [value for _, value in sent if value == "secret"] == []
    assert ("x-kept", "1") in sent


def test_a_task_has_its_own_authorization_where_a_cookie_is_ours() -> None:
    assert ("authorization", "Basic x") in to_task(scope(("authorization", "Basic x")), keeps_authorization=True)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a=1; auth=x; b=2", "a=1; b=2"),
        ("auth=x", None),
        ("undeterred-service=s1.x;det_jwt=y", None),
        ("  auth =x; a=auth=b", "a=auth=b"),
    ],
)
def test_our_cookies_do_not_reach_a_task(sent: str, kept: str | None) -> None:
    assert dict(to_task(scope(("cookie", sent)), keeps_authorization=True)).get("cookie") == kept


def test_a_task_is_told_who_asks_and_not_what_the_client_claims() -> None:
    sent = scope(
        ("host", "m:8081"), ("x-forwarded-for", "1.2.3.4"), ("x-real-ip", "1.2.3.4"), scheme="wss", kind="websocket"
    )
    told = dict(to_task(sent, keeps_authorization=True))
    assert (told["x-forwarded-for"], told["x-real-ip"]) == ("10.0.0.9", "10.0.0.9")
    assert (told["x-forwarded-host"], told["x-forwarded-proto"], told["host"]) == ("m:8081", "https", "m:8081")


@pytest.mark.parametrize(
    ("value", "passed"),
    [
        (b"own=1; Path=/; Domain=example.org; Secure", b"own=1; Path=/; Secure"),
        (b"own=1;domain=.example.org", b"own=1"),
        (b"auth=stolen; Path=/", None),
        (b"undeterred-service=forged", None),
    ],
)
def test_a_task_sets_no_cookie_of_ours_and_none_for_other_hosts(value: bytes, passed: bytes | None) -> None:
    assert dict(to_browser([(b"Set-Cookie", value)], is_sandboxed=False)).get(b"set-cookie") == passed
    assert b"set-cookie" not in dict(to_browser([(b"Set-Cookie", value)], is_sandboxed=True))


def test_at_the_apis_own_origin_a_page_is_in_a_sandbox() -> None:
    sent = [(b"Content-Security-Policy", b"default-src *"), (b"Clear-Site-Data", b"*"), (b"X-Own", b"1")]
    told = to_browser(sent, is_sandboxed=True)
    assert [value for name, value in told if name == b"content-security-policy"] == [b"default-src 'none'; sandbox"]
    assert b"clear-site-data" not in dict(told)
    assert dict(told)[b"x-own"] == b"1"
    assert dict(to_browser(sent, is_sandboxed=False))[b"content-security-policy"] == b"default-src *"


@pytest.mark.parametrize(
    ("kind", "method", "sent", "is_fine"),
    [
        ("http", "GET", ("origin", "http://evil"), True),
        ("http", "POST", ("origin", "http://evil"), False),
        ("http", "POST", ("origin", "http://m:8081"), True),
        ("http", "DELETE", ("origin", "null"), False),
        ("http", "POST", ("origin", "http://[bad"), False),
        ("http", "POST", ("sec-fetch-site", "same-site"), False),
        ("http", "POST", ("sec-fetch-site", "same-origin"), True),
        ("websocket", "GET", ("origin", "http://m:8080"), False),
        ("websocket", "GET", ("origin", "http://M:8081"), True),
    ],
)
def test_only_a_services_own_pages_change_something(
    kind: str, method: str, sent: tuple[str, str], is_fine: bool
) -> None:
    asked = scope(("host", "m:8081"), sent, method=method, kind=kind)
    if is_fine:
        check_origin(asked)
        return
    with pytest.raises(Forbidden, match="another site"):
        check_origin(asked)


def test_headers_have_a_bound() -> None:
    check_size(scope(("x", "y" * (headers.MOST_BYTES - 1))))
    with pytest.raises(HeadersTooLarge, match=f"has|have {headers.MOST_BYTES + 1} bytes"):
        check_size(scope(("x", "y" * headers.MOST_BYTES)))
