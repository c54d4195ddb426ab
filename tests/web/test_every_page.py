"""Every page: for those who see, hear or touch it, in both themes, at three sizes; and with hostile names everywhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, TimeoutError

from tests.kit.browser import Visitor
from tests.kit.embedded import Embedded
from tests.web.conftest import PASSWORD, pictures

#: Address, and what is there once it is drawn.
PAGES = {
    "home": ("/det/dashboard", "h2"),
    "workspaces": ("/det/workspaces", "table"),
    "workspace": ("/det/workspaces/1", "table"),
    "members": ("/det/workspaces/1/members", ".empty, table"),
    "workspace-tasks": ("/det/workspaces/1/tasks", ".empty, table"),
    "workspace-models": ("/det/workspaces/1/models", ".empty, table"),
    "project": ("/det/projects/1", "table"),
    "runs": ("/det/projects/1/runs", "table"),
    "experiment": ("/det/experiments/1", "figure"),
    "trials": ("/det/experiments/1/trials", "table"),
    "search": ("/det/experiments/1/search", ".rungs"),
    "hyperparameters": ("/det/experiments/1/hyperparameters", "[aria-label^='importance:']"),
    "timeline": ("/det/experiments/1/timeline", "svg.picture rect"),
    "checkpoints": ("/det/experiments/1/checkpoints", "table"),
    "code": ("/det/experiments/1/code", "pre"),
    "logs": ("/det/experiments/1/logs", ".log .line"),
    "notes": ("/det/experiments/1/notes", "textarea"),
    "history": ("/det/experiments/1/history", "ol.history"),
    "trial": ("/det/trials/1", "figure"),
    "workloads": ("/det/trials/1/workloads", "table"),
    "system": ("/det/trials/1/system", ".empty"),
    "compare": ("/det/compare?trials=1,2", "figure"),
    "launch": ("/det/launch", "dl"),
    "tasks": ("/det/tasks", ".empty, table"),
    "queue": ("/det/jobs", ".empty, table"),
    "cluster": ("/det/cluster", "table"),
    "slots": ("/det/cluster/slots", "section svg.picture"),
    "bands": ("/det/experiments/1?group=h.batch_size", "figure"),
    "usage": ("/det/cluster/historical-usage", "table"),
    "models": ("/det/models", ".empty, table"),
    "campaigns": ("/det/campaigns", ".empty, table"),
    "templates": ("/det/templates", ".empty, table"),
    "webhooks": ("/det/webhooks", ".empty, table"),
    "users": ("/det/admin/users", "table"),
    "groups": ("/det/admin/groups", ".empty, table"),
    "roles": ("/det/admin/roles?role=1", "section table"),
    "pools": ("/det/admin/pools", "table"),
    "retention": ("/det/admin/logs", "main .danger"),
    "imports": ("/det/admin/imports", ".empty, table"),
    "audit": ("/det/admin/audit", "table"),
    "account": ("/det/account", "h2"),
    "components": ("/det/components", ".rungs"),
    "nowhere": ("/det/nowhere", ".empty"),
    "nothing": ("/det/experiments/99999", ".empty"),
}
HOSTILE = "<img src=x onerror=alert(1)>\"'`${alert(2)}</script><script>alert(3)</script>"


#: What may be wrong in the dark alone: the themes differ in colours.
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
#: Widths and heights of screens.
SIZES = {"phone": (320, 640), "wall": (3840, 2160)}
#: Pixels by which the page itself is wider than the screen.
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def drawn(page: Page, address: str, there: str) -> None:
    page.goto(address)
    page.locator(there).first.wait_for()
    if address != PAGES["components"][0]:  # which shows what a page looks like while it loads
        page.locator("main .skeleton").first.wait_for(state="detached")


def test_no_page_has_a_barrier_and_each_fits_a_phone_and_a_wall(visit: Callable[..., Visitor]) -> None:
    visitor = visit()
    visitor.login("admin", PASSWORD)
    page = visitor.page
    usual = page.viewport_size
    assert usual is not None
    found: list[str] = []
    for name, (address, there) in PAGES.items():
        drawn(page, address, there)
        for scheme, options in (("light", {}), ("dark", OF_COLOURS)):
            page.emulate_media(color_scheme=scheme)
            visitor.picture(pictures(), f"{name}-{scheme}")
            for violation in Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]:
                nodes = [node["html"][:160] for node in violation["nodes"][:3]]
                found.append(f"{name}, {scheme}: {violation['id']}: {violation['help']}: {nodes}")
        page.emulate_media(color_scheme="light")
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            with contextlib.suppress(TimeoutError):  # pictures are drawn anew for this size
                page.wait_for_function(f"{SIDEWAYS} <= 0", timeout=2000)
            if size == "phone":
                visitor.picture(pictures(), f"{name}-{size}")
            if (over := page.evaluate(SIDEWAYS)) > 0:
                found.append(f"{name}, {size}: {over} px wider than the screen")
        page.set_viewport_size(usual)
    assert not found, "\n".join(found)


def test_phone_has_the_menu(visit: Callable[..., Visitor]) -> None:
    visitor = visit(width=320, height=640)
    visitor.login("admin", PASSWORD)
    page = visitor.page
    page.get_by_role("button", name="menu", exact=True).click()
    page.get_by_role("navigation", name="main").get_by_role("link", name="Queue").click()
    page.get_by_role("heading", name="Queue of default").wait_for()
    assert not page.get_by_role("button", name="close the menu").is_visible()


def test_hostile_names_are_text_on_every_page(admin: Visitor, cluster: Embedded) -> None:
    """Whatever a user may name, write, report or print, no page runs it."""
    script = (
        "import sys\nimport determined as det\n"
        f"bad = {HOSTILE!r}\nprint(bad)\n"
        "with det.core.init() as c:\n"
        "    c.train.report_training_metrics(1, {bad: 1.0, 'fine': 2.0})\n"
        "    c.train.report_validation_metrics(1, {'loss': 1.0, bad: 0.5})\n"
        "    with c.checkpoint.store_path({'steps_completed': 1, 'about': bad}) as (path, _):\n"
        "        (path / 'weights').write_text('1')\n"
    )
    config = {
        "name": HOSTILE, "description": HOSTILE, "labels": [HOSTILE[:40]], "entrypoint": "python3 train.py", "max_restarts": 0,
        "hyperparameters": {HOSTILE: {"type": "categorical", "vals": [HOSTILE, "other"]}, "x": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 1}},
    }  # fmt: skip
    number = cluster.create(json.dumps(config), script)
    assert cluster.det("experiment", "wait", str(number)).returncode == 0
    page, token = admin.page, _token(admin)

    def ask(method: str, path: str, body: object) -> None:
        answer = page.request.fetch(
            f"{admin.master}{path}",
            method=method,
            data=json.dumps(body),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        assert answer.ok, answer.text()

    ask("PATCH", f"/api/v1/experiments/{number}", {"notes": HOSTILE})
    ask("POST", "/api/v1/models", {"name": "hostile", "description": HOSTILE, "labels": [HOSTILE], "notes": HOSTILE})
    ask("PUT", "/api/v1/master/cluster_message", {"message": HOSTILE[:90], "startTime": "2026-01-01T00:00:00Z"})
    ask(
        "POST",
        "/api/v1/commands",
        {"config": {"entrypoint": ["sleep", "600"], "description": HOSTILE, "resources": {"slots": 0}}},
    )
    (first,) = cluster.rows(f"SELECT min(id) FROM trials WHERE experiment_id = {number}")[0]
    addresses = [
        *(f"/det/experiments/{number}/{tab}" for tab in ("overview", "trials", "search", "hyperparameters", "checkpoints", "code", "logs", "notes", "history")),
        *(f"/det/trials/{first}/{tab}" for tab in ("overview", "hyperparameters", "checkpoints", "workloads", "logs")),
        "/det/projects/1", "/det/dashboard", "/det/tasks", "/det/jobs", "/det/models", "/det/models/hostile", "/det/admin/audit",
        f"/det/compare?experiments=1,{number}", f"/det/compare?trials={first},{first + 1}", f"/det/experiments/{number}/logs?search=<img",
        "/det/projects/1?name=<script>alert(1)</script>&label=<img src=x onerror=alert(1)>",
    ]  # fmt: skip
    seen = 0
    for address in addresses:
        page.goto(address)
        page.locator("main h1, main .empty").first.wait_for()
        page.wait_for_timeout(300)
        seen += page.get_by_text("<img src=x onerror=alert(1)>").count()
        assert page.locator("img").count() == 0, address
        assert page.locator("script:not([type=module])").count() == 0, address
    assert seen > len(addresses), "the names are there, as text"
    admin.saw_no_problem(but=("Failed to load resource",))
    ask("DELETE", "/api/v1/master/cluster_message", {})


def _token(visitor: Visitor) -> str:
    return next(cookie["value"] for cookie in visitor.context.cookies() if cookie["name"] == "auth")
