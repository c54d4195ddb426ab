"""What operators look at in the pages: machines, history, roles, lists, logs."""

from __future__ import annotations

import re
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.kit.browser import WAIT_MS, Visitor
from tests.kit.embedded import Embedded
from tests.web.conftest import DIGITS, pictures

expect.set_options(timeout=WAIT_MS)
SINGLE = "name: {name}\nentrypoint: python3 train.py\nsearcher: {{name: single, metric: loss, max_length: {{batches: 2000}}}}\nmax_restarts: {restarts}\n"
MEASURED = """
import sys, time
import determined as det
first = det.get_cluster_info().trial._trial_run_id == 1
with det.core.init() as c:
    c.profiler.on(sampling_interval=0.1, samples_per_report=1)
    for n in range(1, 2000):
        c.train.report_validation_metrics(n, {'loss': 1 / n})
        if c.preempt.should_preempt():
            break
        if first and n > 5:
            time.sleep(0.5)
            sys.exit(3)
        time.sleep(0.2)
"""


def no_barrier(page: Page) -> None:
    """Nothing that a screen reader or the keyboard stumbles over."""
    result: Any = Axe().run(page)  # pyright: ignore[reportUnknownMemberType]
    assert not result.response["violations"], result.generate_report()


def test_operator_sees_what_the_machines_of_a_trial_do(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    number = cluster.create(SINGLE.format(name="measured", restarts=1), MEASURED)
    cluster.until(lambda: cluster.rows("SELECT 1 FROM metrics WHERE total_batches IS NULL"), 60, "it is measured")
    (trial,) = cluster.rows(f"SELECT id FROM trials WHERE experiment_id = {number}")[0]
    page.goto(f"/det/trials/{trial}")
    page.get_by_role("link", name="System", exact=True).click()
    expect(page.get_by_role("heading", name="CPU in use (%)")).to_be_visible()
    expect(page.get_by_role("heading", name="Memory free (bytes)")).to_be_visible()
    expect(page.get_by_text(re.compile(r"2 runs; shaded: between them"))).to_be_visible()  # it learns of the second one
    cpu = page.locator('figure[aria-label^="CPU in use"]')
    before = int(cpu.get_attribute("data-points") or 0)
    page.wait_for_function(
        f"() => Number(document.querySelector('figure[aria-label^=\"CPU in use\"]').dataset.points) > {before + 5}"
    )
    no_barrier(page)
    admin.picture(pictures(), "system")
    box = cpu.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"zoom=\d+-\d+"))
    page.reload()
    page.get_by_role("button", name="Whole range").click()
    expect(page).not_to_have_url(re.compile("zoom="))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save Disk throughput (bytes/s) as CSV").click()
    assert re.match(r"s,\S+ read,\S+ written\n", waiting.value.path().read_text())
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    expect(page.locator("header .state")).to_contain_text("canceled")
    cluster.det("experiment", "wait", str(number))
    assert cluster.det("experiment", "label", "add", str(number), "seen").returncode == 0
    page.goto(f"/det/experiments/{number}/history")
    told = page.locator("ol.history li")
    expect(told.filter(has_text="admin created it")).to_be_visible()
    expect(told.filter(has_text=f"killed trial {trial}")).to_contain_text("from 127.0.0.1")
    expect(told.filter(has_text=re.compile(f"run 1 of trial {trial} failed"))).to_be_visible()
    expect(told.first).to_contain_text("admin edited it labels")
    no_barrier(page)
    admin.picture(pictures(), "history")
    page.get_by_label("show").select_option("run")
    expect(told).to_have_count(1)
    expect(page).to_have_url(re.compile("kind=run"))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save the history as CSV").click()
    assert waiting.value.path().read_text().startswith("at,kind,actor,what,experiment,trial,fields\n")


def test_page_says_how_to_switch_the_profiler_on(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/trials/1/system")
    expect(page.get_by_text("profiling: {enabled: true}")).to_be_visible()


def test_administrator_gives_roles_members_and_pools(admin: Visitor, cluster: Embedded) -> None:
    for command in (
        ("user", "create", "rosa", "--password", "R0sa-secret-pw"), ("user-group", "create", "surveyors"),
        ("workspace", "create", "atlas"), ("resource-pool", "create", "maps"), ("token", "create"),
    ):  # fmt: skip
        done = cluster.det(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    page = admin.page
    page.goto("/det/admin/roles")
    page.get_by_role("link", name="Editor", exact=True).click()
    page.get_by_role("button", name="Give this role").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the user").fill("nobody of that name")
    dialog.get_by_role("button", name="Give it").click()
    expect(dialog.get_by_label("Name of the user")).to_have_accessible_description(re.compile("nobody of that name"))
    dialog.get_by_label("Name of the user").fill("rosa")
    dialog.get_by_label("Where").select_option(label="in atlas")
    dialog.get_by_role("button", name="Give it").click()
    holder = page.get_by_role("row").filter(has_text="rosa")
    expect(holder).to_contain_text("atlas")
    no_barrier(page)
    admin.picture(pictures(), "roles")
    holder.get_by_role("button", name="Take it back").click()
    page.get_by_role("dialog").get_by_role("button", name="Take it back").click()
    expect(page.get_by_text("Nobody has this role")).to_be_visible()
    page.goto("/det/admin/groups")
    page.get_by_role("link", name="surveyors").click()
    page.get_by_label("Name of the user").fill("rosa")
    page.get_by_role("button", name="Add", exact=True).click()
    members = page.get_by_role("region", name="members", exact=True)
    expect(members).to_contain_text("rosa")
    expect(page.get_by_role("row").filter(has_text="surveyors")).to_contain_text("1")
    no_barrier(page)
    members.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Nobody is in this group yet")).to_be_visible()
    page.goto("/det/admin/pools")
    page.get_by_role("button", name="bind maps to a workspace").click()
    page.get_by_role("dialog").get_by_role("combobox").select_option(label="atlas")
    page.get_by_role("dialog").get_by_role("button", name="Bind").click()
    row = page.get_by_role("row").filter(has_text="maps")
    expect(row.get_by_role("link", name="atlas")).to_be_visible()
    no_barrier(page)
    page.get_by_role("button", name="unbind atlas from maps").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    expect(row).to_contain_text("all")
    row.get_by_role("button", name="Restrict").click()
    page.get_by_role("dialog").get_by_role("button", name="Restrict").click()
    expect(row).to_contain_text("administrators")
    row.get_by_role("button", name="grant maps").click()
    page.get_by_role("dialog").get_by_label("Name").fill("rosa")
    page.get_by_role("dialog").get_by_role("button", name="Grant").click()
    expect(row).to_contain_text("user rosa")
    no_barrier(page)
    row.get_by_role("button", name="revoke maps from user rosa").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).not_to_contain_text("rosa")
    page.goto("/det/admin/tokens")
    expect(page.get_by_role("table")).to_contain_text("admin")
    page.goto("/det/admin/logs")
    page.get_by_role("button", name="Remove expired logs now").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.locator(".toast")).to_contain_text("0 lines removed")


def test_grid_is_filtered_sorted_coloured_and_pinned_and_its_address_holds_all(
    admin: Visitor, cluster: Embedded
) -> None:
    for name in ("grid b", "grid a", "grid c"):
        done = cluster.det("experiment", "create", str(DIGITS / "const.yaml"), str(DIGITS), "--config", f"name={name}")
        assert done.returncode == 0, done.stdout + done.stderr
    numbers = dict(cluster.rows("SELECT name, id FROM experiments WHERE name LIKE 'grid %' ORDER BY id"))
    cluster.until(
        lambda: cluster.rows("SELECT count(*) FROM experiments WHERE name LIKE 'grid %' AND state = 'COMPLETED'") == [(3,)],
        90, "they have ended")  # fmt: skip
    page = admin.page
    page.goto("/det/projects/1")
    page.get_by_role("button", name="Filter", exact=True).click()
    dialog = page.get_by_role("dialog", name="Filter experiments")
    dialog.get_by_label("value").fill("grid")
    dialog.get_by_role("button", name="Add a group").click()
    dialog.get_by_label("value").last.fill("grid a")
    dialog.get_by_role("button", name="Add a condition").first.click()
    dialog.get_by_label("column").nth(2).fill("name")
    dialog.get_by_label("value").nth(2).fill("grid b")
    no_barrier(page)
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("name contains grid and (name contains grid a or name contains grid b)")).to_be_visible()
    names = page.locator("tbody tr td:nth-child(4) a")
    expect(names).to_have_text(["grid a", "grid b"])
    page.get_by_role("button", name="remove the filter").click()
    page.get_by_label("filter by name").fill("grid")
    expect(names).to_have_text(["grid c", "grid a", "grid b"])
    page.get_by_role("button", name="Trials").click()
    page.get_by_role("button", name="Name").click(modifiers=["Shift"])
    expect(names).to_have_text(["grid a", "grid b", "grid c"])
    expect(page).to_have_url(re.compile(r"sort=numTrials(%2C|,)name"))
    page.get_by_label(f"pin {numbers['grid c']}", exact=True).click()
    expect(names).to_have_text(["grid c", "grid a", "grid b"])
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog", name="Columns")
    dialog.get_by_label("filter columns").fill("accuracy.last")
    dialog.get_by_label("show validation.accuracy.last").check()
    dialog.get_by_label("colour validation.accuracy.last").check()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("td.heat")).to_have_count(3)
    no_barrier(page)
    admin.picture(pictures(), "grid")
    other = admin.open()
    other.goto(page.url)
    expect(other.locator("tbody tr td:nth-child(4) a")).to_have_text(["grid c", "grid a", "grid b"])
    expect(other.locator("td.heat")).to_have_count(3)
    page.get_by_label(f"launch {numbers['grid b']} again").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(re.compile(r"/det/experiments/\d+$"))
    page.goto("/det/projects/1?filter={broken")
    expect(page.get_by_text("The filter in the address can't be read")).to_be_visible()


def test_experiments_are_moved_together(admin: Visitor, cluster: Embedded) -> None:
    assert cluster.det("workspace", "create", "archive").returncode == 0
    assert cluster.det("project", "create", "archive", "elsewhere").returncode == 0
    for _ in range(2):
        cluster.create(SINGLE.format(name="moves", restarts=0), "raise SystemExit(1)")
    page = admin.page
    page.goto("/det/projects/1?name=moves")
    page.get_by_label("choose all").check()
    page.get_by_role("button", name="Move 2").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Workspace").select_option(label="archive")
    dialog.get_by_label("Project").select_option(label="elsewhere")
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("done for 2 experiments")
    expect(page.get_by_text("No experiment matches")).to_be_visible()


def test_runs_of_all_experiments_are_found_compared_and_put_away(admin: Visitor, cluster: Embedded) -> None:
    for _ in range(2):
        cluster.create(SINGLE.format(name="of many runs", restarts=0), "raise SystemExit(1)")
    ended = "SELECT count(*) FROM experiments WHERE name = 'of many runs' AND state = 'ERROR'"
    cluster.until(lambda: cluster.rows(ended) == [(2,)], 90, "they have ended")
    newest = cluster.rows(
        "SELECT max(t.id) FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE e.name = 'of many runs'"
    )
    page = admin.page
    page.goto("/det/projects/1")
    page.get_by_label("parts of this page").get_by_role("link", name="Runs").click()
    page.get_by_label("filter by name").fill("of many")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("error")
    expect(rows.first.locator("td").nth(2)).to_have_text(str(newest[0][0]))
    page.get_by_role("button", name="Filter", exact=True).click()
    dialog = page.get_by_role("dialog", name="Filter runs")
    dialog.get_by_label("column").fill("id")
    dialog.get_by_label("column").press("Tab")
    dialog.get_by_label("operator").select_option("=")
    dialog.get_by_label("value").fill(str(newest[0][0]))
    dialog.get_by_role("button", name="Apply").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="remove the filter").click()
    expect(rows).to_have_count(2)
    page.get_by_label("choose all").check()
    no_barrier(page)
    compare = page.get_by_role("link", name="Compare").get_attribute("href")
    assert compare is not None
    assert compare.startswith("/det/compare?trials=")
    page.get_by_role("button", name="Archive 2", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("archive: done for 2 runs")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.goto(compare)
    expect(page.get_by_role("heading", name="Compare trials")).to_be_visible()
    page.goto("/det/dashboard")
    expect(page.get_by_role("link", name=re.compile("Uncategorized"))).to_be_visible()


def test_histogram_of_a_log_leads_to_a_time(admin: Visitor, cluster: Embedded) -> None:
    script = (
        "import time\nfor n in range(300):\n    print(f'first {n}', flush=True)\ntime.sleep(5)\nprint('ERROR: it broke', flush=True)\n"
        "time.sleep(5)\nfor n in range(300):\n    print(f'last {n}')\n"
    )
    number = cluster.create(SINGLE.format(name="counted", restarts=0), script)
    cluster.det("experiment", "wait", str(number))
    page = admin.page
    page.goto(f"/det/experiments/{number}/logs")
    place = page.get_by_role("slider", name="show the log from a time")
    expect(place).to_be_visible()
    figure = page.get_by_role("figure", name=re.compile("lines over time"))
    expect(figure).to_contain_text("error or worse: 1")
    log = page.get_by_role("log")
    expect(log.get_by_text("last 299")).to_be_visible()
    no_barrier(page)
    admin.picture(pictures(), "log-histogram")
    box = place.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 20)
    expect(log.get_by_text("it broke")).to_be_visible()
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
    place.press("Home")
    expect(log.get_by_text("first 0", exact=True)).to_be_visible()
    page.get_by_label("level").select_option("ERROR")
    expect(figure).to_contain_text("other: 0")
    page.get_by_label("level").select_option("")
    page.get_by_label("search the log").fill("first 29")
    expect(figure).to_contain_text("other: 11")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save lines over time as CSV").click()
    assert waiting.value.path().read_text().startswith("from,error or worse,warning,other\n")


_CAMPAIGN = """
name: "nightly {name}"
description: {name}
params: {{epochs: 3}}
schedule: {{cron: "@daily"}}
steps:
  first: {{task: {{entrypoint: ["true"], resources: {{slots: 0}}}}}}
  slow: {{task: {{entrypoint: ["sleep", "600"], resources: {{slots: 0}}}}, after: [first]}}
  skipped: {{task: {{entrypoint: ["true"]}}, when: "${{steps.first.exit_code}} > 0"}}
"""


def test_campaign_is_created_run_watched_paused_and_canceled(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.get_by_role("navigation", name="main").get_by_role("link", name="Campaigns").click()
    page.get_by_role("button", name="New campaign").click()
    definition = page.get_by_label("Definition, as YAML")
    definition.fill("name: x\nsteps: {a: {task: {entrypoint: '${steps.b.id}'}}}")
    page.get_by_role("button", name="Create it").click()
    expect(page.get_by_role("alert")).to_contain_text("there is no such step")
    definition.fill(_CAMPAIGN.format(name="<b onclick=alert(1)>bold</b>"))
    page.get_by_role("button", name="Create it").click()
    expect(page.get_by_role("heading", name="nightly <b onclick=alert(1)>bold</b>")).to_be_visible()
    expect(page.get_by_text("No run yet.")).to_be_visible()
    page.get_by_role("button", name="Run it now").click()
    page.get_by_label("Parameters, as JSON").fill('{"epochs": "x"}')
    page.get_by_role("button", name="Start it").click()
    expect(page.get_by_role("alert")).to_contain_text("expected a number")
    page.get_by_label("Parameters, as JSON").fill('{"epochs": 5}')
    page.get_by_role("button", name="Start it").click()
    steps = page.get_by_role("region", name="steps", exact=True)
    expect(steps.get_by_role("row", name="slow")).to_contain_text("running")
    expect(steps.get_by_role("row", name="first completed")).to_be_visible()
    expect(steps.get_by_role("row", name="skipped skipped")).to_contain_text("its condition does not hold")
    assert page.locator("svg.picture rect").count() == 3
    page.wait_for_timeout(300)
    no_barrier(page)
    admin.picture(pictures(), "campaign")
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("button", name="Pause the schedule").click()
    expect(page.get_by_text("next run: paused")).to_be_visible()
    page.get_by_role("button", name="Kill", exact=True).click()
    page.get_by_role("button", name="Kill it").click()
    expect(steps.get_by_role("row", name="slow")).to_contain_text("canceled")
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("region", name="runs")).to_contain_text("canceled")
    page.get_by_role("link", name="Definition").click()
    expect(page.locator("pre")).to_contain_text("epochs: 3")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(re.compile("/det/campaigns$"))
    assert cluster.rows("SELECT count(*) FROM campaigns") == [(0,)]


def test_operator_starts_an_import_and_sees_why_it_does_not_go_on(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/admin/imports")
    page.get_by_role("button", name="New import").click()
    page.get_by_label("Address of the other database").fill("postgresql://me:hunter2@127.0.0.1:1/old")
    page.get_by_role("button", name="Start", exact=True).click()
    report = page.get_by_role("region", name="import 1", exact=True)
    expect(report.get_by_role("heading", name="Import 1: plan from 127.0.0.1:1/old")).to_be_visible()
    expect(report.get_by_text(re.compile("127.0.0.1.*refused"))).to_be_visible()  # it learns of it by itself
    expect(page.get_by_text("hunter2")).to_have_count(0)
    no_barrier(page)
    admin.picture(pictures(), "import")
    report.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_role("table", name="imports").get_by_text("canceled")).to_be_visible()
