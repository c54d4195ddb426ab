"""How the web UI is served: one page for all addresses, immutable assets, and a bound on their size."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.integration.api.served import Served
from web import files

#: JavaScript and CSS, compressed, until the first chart and until any page is there. Source: spec web-ui.md §3.
_FIRST_PAGE, _ANY_PAGE = 60 * 1024, 80 * 1024


@pytest.mark.parametrize(
    "path", ["/det", "/det/", "/det/login", "/det/experiments/7/search", "/det/a/b/c/d", "/det/%2e%2e/x"]
)
async def test_every_address_of_a_page_is_answered_with_the_page(api: Served, path: str) -> None:
    page = await api.http.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert page.text == (await api.http.get("/det/")).text


async def test_start_leads_to_the_pages(api: Served) -> None:
    start = await api.http.get("/", follow_redirects=False)
    assert (start.status_code, start.headers["location"]) == (307, "/det/")


async def test_page_names_files_of_ours_only_and_all_are_there_for_good(api: Served) -> None:
    page = (await api.http.get("/det/")).text
    assert "://" not in page
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|style=|onclick", page), "its policy forbids it"
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(named) > 12
    for each in named:
        file = await api.http.get(each)
        assert file.status_code == 200, each
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.headers["content-encoding"] == "gzip" or len(file.content) < 200


async def test_worker_may_ask_the_api_and_other_files_may_do_nothing(api: Served) -> None:
    """A worker has the policy of its own file, not of the page; a file that is opened by itself has no rights."""
    base = files.load().base
    policies = {
        path: (await api.http.get(f"{base}/{path}")).headers.get_list("content-security-policy")
        for path in ("app/stream-worker.js", "app/main.js")
    }
    assert policies == {
        "app/stream-worker.js": ["default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'"],
        "app/main.js": ["default-src 'none'; frame-ancestors 'none'; sandbox"],
    }


async def test_file_is_the_same_without_compression(api: Served) -> None:
    held = files.load()
    path = f"{held.base}/app/main.js"
    plain = await api.http.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == held.by_path["app/main.js"].content
    assert plain.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize(
    "path", ["{base}/nothing.js", "{base}/../index.html", "{base}/%2e%2e/files.py", "{base}/app/", "{base}", "{base}/index.html",
             "/det/assets/0000000000000000/app/main.js", "{base}//etc/passwd", "{base}/vendor/preact.d.ts"],
)  # fmt: skip
async def test_nothing_else_is_a_file(api: Served, path: str) -> None:
    answer = await api.http.get(path.format(base=files.load().base))
    assert answer.status_code == 404 or answer.text == files.load().index.decode()


def size(paths: Iterable[str]) -> int:
    held = files.load().by_path
    return sum(len(held[path].compressed or held[path].content) for path in paths)


def test_what_the_first_chart_needs_is_small() -> None:
    held = files.load().by_path
    contents = {path: file.content for path, file in held.items()}
    styles = [path for path in held if path.endswith(".css")]
    shell = {*files.needed(contents, "app/main.js"), *styles}
    assert size({*shell, *files.needed(contents, "app/pages/experiment.js")}) <= _FIRST_PAGE, "compressed"
    for path in contents:
        if path.startswith("app/pages/"):
            assert size({*shell, *files.needed(contents, path)}) <= _ANY_PAGE, path


def test_modules_are_what_their_source_is_without_comments() -> None:
    held = files.load().by_path["app/format.js"].content
    assert b"//" not in held
    assert b"/**" not in held
    assert b"export function metric(value) {" in held


def test_compressed_files_are_the_files() -> None:
    for path, file in files.load().by_path.items():
        assert file.compressed is None or gzip.decompress(file.compressed) == file.content, path


def test_vendored_libraries_are_what_the_record_says() -> None:
    done = subprocess.run([sys.executable, "-m", "web.vendor", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_write_no_markup_of_their_own() -> None:
    """What users named is text everywhere: nothing sets HTML."""
    for path, file in files.load().by_path.items():
        if path.startswith("app/"):
            found = re.findall(
                rb"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|eval\(", file.content
            )
            assert not found, f"{path}: {found}"
