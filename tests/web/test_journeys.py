"""The pages in a real browser, used as people use them, against a real cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

from tests.kit.browser import WAIT_MS, Visitor
from tests.kit.embedded import Embedded
from tests.kit.relay import relayed
from tests.kit.servers import REPOSITORY
from tests.web.conftest import DIGITS, PASSWORD, created, pictures

expect.set_options(timeout=WAIT_MS)
#: Loads `web` from beside this file before anything else does, in every process that has the folder on its path.
_OTHER_PAGES = "import sys\nsys.path.insert(0, {0!r})\nimport web\nsys.path.remove({0!r})\n"
LONG = "import time\nimport determined as det\nwith det.core.init() as c:\n    for n in range(1, 2000):\n        c.train.report_validation_metrics(n, {'loss': 1 / n})\n        if c.preempt.should_preempt():\n            break\n        time.sleep(0.2)\n"
SINGLE = "name: {name}\nentrypoint: python3 train.py\nsearcher: {{name: single, metric: loss, max_length: {{batches: 2000}}}}\nmax_restarts: 0\n"


def points(page: Page, title: str) -> int:
    """Points that a chart has drawn."""
    return int(page.locator(f'figure[aria-label^="{title}:"]').get_attribute("data-points") or 0)


def test_newcomer_launches_watches_understands_forks_and_compares(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.get_by_role("link", name="New experiment").first.click()
    page.get_by_label("Configuration (YAML)").fill("name: broken\nsearcher: {name: nothing}\n")
    expect(page.get_by_role("alert")).to_contain_text("searcher")
    expect(page.get_by_role("button", name="Start it")).to_be_disabled()
    text = (DIGITS / "adaptive.yaml").read_text().replace("name: digits-adaptive", "name: from the browser")
    page.get_by_label("Configuration (YAML)").fill(text)
    expect(page.get_by_text("16, at most 4 at a time")).to_be_visible()
    expect(page.get_by_text(re.compile("slot-epochs if all goes as planned"))).to_be_visible()
    page.get_by_label("or single files").set_input_files([DIGITS / "train.py", DIGITS / "model.py"])
    admin.picture(pictures(), "launch")
    page.get_by_role("button", name="Start it").click()
    page.wait_for_url(re.compile(r"/det/experiments/\d+$"))
    number = int(page.url.rpartition("/")[2])
    expect(page.get_by_role("heading", name=f"{number} from the browser")).to_be_visible()
    chart = page.locator('figure[aria-label^="validation.accuracy:"]')
    expect(chart).to_be_visible()
    page.wait_for_function(
        "() => Number(document.querySelector('figure[aria-label^=\"validation.accuracy\"]')?.dataset.points) > 30"
    )
    expect(page.locator("header .state")).to_contain_text("completed", timeout=3 * WAIT_MS)
    stored = cluster.rows(
        "SELECT count(*) FROM metrics JOIN trials ON trials.id = trial_id"
        f" WHERE experiment_id = {number} AND group_name = 'validation' AND NOT archived"
    )
    expect(chart).to_have_attribute("data-points", str(stored[0][0]))
    admin.picture(pictures(), "experiment")
    page.get_by_role("link", name=re.compile(r"^trial \d+$")).first.click()
    expect(page.get_by_text("best of the experiment")).to_be_visible()
    expect(page.get_by_role("heading", name="Why it stands so")).to_be_visible()
    expect(page.get_by_text(re.compile("decision 1: created: the search began"))).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_label("one decision back").click()
    expect(page.get_by_role("heading", name=re.compile(r"After decision \d+ of \d+$"))).to_be_visible()
    expect(page).to_have_url(re.compile(r"at=\d+"))
    page.get_by_label("rungs").get_by_role("link").first.hover()
    admin.picture(pictures(), "search")
    page.get_by_role("button", name="Fork here").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(re.compile(rf"/det/experiments/(?!{number})\d+$"))
    expect(page.get_by_role("link", name=f"forked from {number}")).to_be_visible()
    fork = int(page.url.rpartition("/")[2])
    page.goto(f"/det/compare?experiments={number},{fork}")
    expect(page.get_by_role("heading", name=f"Compare experiments {number}, {fork}")).to_be_visible()
    expect(page.locator("figure").first).to_be_visible()
    page.goto(f"/det/compare?experiments={number},{fork}&at=2")
    ours, theirs = (page.get_by_label(f"search of {each}") for each in (number, fork))
    event = ours.locator("dd").nth(1).inner_text().partition(",")[0]
    expect(theirs.locator("dd").nth(1)).to_contain_text(event)  # the fork shares what was decided until then
    page.get_by_role("button", name="one decision on").click()
    for search in (ours, theirs):
        expect(search.locator("dd").first).to_contain_text(re.compile(r"^3, "))
    expect(page).to_have_url(re.compile(r"at=3"))
    admin.picture(pictures(), "searches")


def test_operator_sees_who_waits_and_why_drains_a_host_and_moves_a_job(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    running = [cluster.create(SINGLE.format(name=f"holds {n}"), LONG) for n in (1, 2)]
    waiting = [cluster.create(SINGLE.format(name=f"waits {n}"), LONG) for n in (1, 2)]
    page.goto("/det/jobs")
    expect(page.get_by_text(re.compile(r"waits for 1 slot of pool `default`: place 1 of 2")).first).to_be_visible()
    last = page.get_by_role("row").filter(has_text="waits 2")
    last.get_by_role("button", name="To the front").click()
    expect(page.get_by_role("row").filter(has_text="waits 2")).to_contain_text("place 1 of 2")
    admin.picture(pictures(), "queue")
    page.goto("/det/cluster")
    expect(page.get_by_role("img", name="slot 0 in use")).to_be_visible()
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("cell", name="draining")).to_be_visible()
    admin.picture(pictures(), "cluster")
    page.get_by_role("button", name="Enable").click()
    expect(page.get_by_role("cell", name="yes")).to_be_visible()
    page.goto("/det/projects/1")
    for number in (*running, *waiting):
        page.get_by_label(f"choose {number}", exact=True).check()
    page.get_by_role("button", name="Kill 4").click()
    expect(page.get_by_role("dialog")).to_contain_text("their trials keep the checkpoints")
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    for number in (*running, *waiting):
        expect(
            page.get_by_role("row").filter(has=page.get_by_role("link", name=str(number), exact=True))
        ).to_contain_text("canceled")


def test_page_goes_on_by_itself_when_the_api_was_killed(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    number = cluster.create(SINGLE.format(name="outlives the API"), LONG)
    page.goto(f"/det/experiments/{number}")
    page.wait_for_function("() => Number(document.querySelector('figure')?.dataset.points) > 3")
    os.kill(cluster.pid("api"), signal.SIGKILL)
    expect(page.get_by_text(re.compile("The API does not answer"))).to_be_visible()
    before = points(page, "validation.loss")
    cluster.up()
    expect(page.get_by_text(re.compile("The API does not answer"))).to_be_hidden()
    page.wait_for_function(f"() => Number(document.querySelector('figure')?.dataset.points) > {before + 5}")
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    expect(page.locator("header .state")).to_contain_text("canceled")
    stored = cluster.rows(
        f"SELECT count(*) FROM metrics JOIN trials ON trials.id = trial_id WHERE experiment_id = {number}"
    )
    expect(page.locator("figure")).to_have_attribute("data-points", str(stored[0][0]))


def test_page_goes_on_by_itself_when_the_network_was_away(browser: Browser, cluster: Embedded) -> None:
    number = cluster.create(SINGLE.format(name="outlives the network"), LONG)
    with relayed(int(cluster.environment["UNDETERRED_PORT"])) as line:
        visitor = Visitor(browser, f"http://localhost:{line.port}")
        visitor.login("admin", PASSWORD)
        page = visitor.page
        page.goto(f"/det/experiments/{number}")
        page.wait_for_function("() => Number(document.querySelector('figure')?.dataset.points) > 3")
        away = page.get_by_text(re.compile("The API does not answer"))
        line.cut()
        expect(away).to_be_visible()
        page.get_by_role("link", name="Trials").click()  # what is asked for meanwhile comes afterwards
        line.mend()
        expect(away).to_be_hidden()
        page.get_by_role("row").nth(1).wait_for()
        page.get_by_role("link", name="Overview").click()
        cluster.det("experiment", "kill", str(number))
        expect(page.locator("header .state")).to_contain_text("canceled")
        ((stored,),) = cluster.rows(
            f"SELECT count(*) FROM metrics JOIN trials ON trials.id = trial_id WHERE experiment_id = {number}"
        )
        expect(page.locator("figure")).to_have_attribute("data-points", str(stored))
        visitor.context.close()


def test_page_stays_live_without_temporal_and_says_what_needs_it(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    number = cluster.create(SINGLE.format(name="outlives Temporal"), LONG)
    page.goto(f"/det/experiments/{number}")
    page.wait_for_function("() => Number(document.querySelector('figure')?.dataset.points) > 3")
    os.kill(cluster.pid("temporal"), signal.SIGKILL)
    before = points(page, "validation.loss")
    page.wait_for_function(f"() => Number(document.querySelector('figure')?.dataset.points) > {before + 3}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".toast.bad")).to_contain_text("Temporal does not answer")
    cluster.up()
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    expect(page.locator("header .state")).to_contain_text("canceled")


def test_all_tabs_share_one_stream(admin: Visitor, browser: Browser, cluster: Embedded) -> None:
    """A browser opens at most six connections to one host: with a stream for each tab, the seventh tab would hang."""
    number = cluster.create(SINGLE.format(name="in eight tabs"), LONG)
    tabs = [admin.page, *(admin.open() for _ in range(7))]
    for tab in tabs:
        tab.goto(f"/det/experiments/{number}")
    drawn = "() => Number(document.querySelector('figure')?.dataset.points)"
    for tab in tabs:
        tab.wait_for_function(f"{drawn} > 3")
    workers = browser.new_browser_cdp_session().send("Target.getTargets")["targetInfos"]
    assert len([each for each in workers if each["type"] == "shared_worker" and admin.master in each["url"]]) == 1
    for tab in tabs:
        opened = tab.evaluate("() => performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert not [address for address in opened if "/live?" in address], "a stream of its own"
    before = tabs[0].evaluate(drawn)
    for tab in tabs[1:]:
        tab.close()  # what others followed goes on
    tabs[0].wait_for_function(f"{drawn} > {before} + 5")
    cluster.det("experiment", "kill", str(number))
    expect(tabs[0].locator("header .state")).to_contain_text("canceled")


def test_page_asks_for_a_login_when_the_session_ends_elsewhere(admin: Visitor, cluster: Embedded) -> None:
    page, other = admin.page, admin.open()
    page.goto("/det/jobs")
    other.goto("/det/logout")
    expect(other.get_by_label("Password")).to_be_visible()
    expect(page.get_by_label("Password")).to_be_visible()
    admin.login("admin", PASSWORD, "/det/jobs")
    expect(page.get_by_role("heading", name="Queue")).to_be_visible()


def test_log_follows_and_goes_back_to_its_start(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    script = "import time\nfor n in range(1200):\n    print(f'line {n} of the log')\ntime.sleep(2)\nprint('\\x1b[31mred\\x1b[0m and <b>plain</b>')\n"
    number = cluster.create(SINGLE.format(name="writes"), script)
    cluster.det("experiment", "wait", str(number))
    page.goto(f"/det/experiments/{number}/logs")
    log = page.get_by_role("log")
    expect(log.get_by_text("and <b>plain</b>")).to_be_visible()
    expect(log.locator(".a31")).to_have_text("red")
    page.get_by_role("button", name="Start").click()
    expect(log.get_by_text("line 0 of the log")).to_be_visible()
    page.get_by_label("search the log").fill("line 777 of")
    expect(log.locator("mark")).to_have_text("line 777 of")
    expect(page).to_have_url(re.compile("search=line"))
    admin.picture(pictures(), "logs")


def test_page_that_could_not_start_tries_again_by_itself(visit: Callable[..., Visitor]) -> None:
    page, refused = visit().page, list[str]()
    first = re.compile("/api/v1/(master|me|permissions/summary)$")  # what each page asks for first

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        if len(refused) > 6:
            route.continue_()
        else:
            route.fulfill(status=503, json={"message": "the database takes no more connections"})

    page.route(first, refuse)
    page.goto("/det/")
    expect(page.get_by_role("alert")).to_contain_text("no more connections")
    expect(page.get_by_label("User")).to_be_visible()
    assert len(refused) > 6, "it asked again after two times in vain"


def test_login_says_why_not_and_leads_nowhere_else(visit: Callable[..., Visitor], cluster: Embedded) -> None:
    visitor = visit()
    page = visitor.page
    for target in (
        "https://evil.example/",
        "//evil.example/",
        "javascript:alert(1)",
        "\\\\evil.example",
        "/\\evil.example",
    ):
        page.goto(f"/det/login?redirect={target}")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("redentials")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("navigation", name="main").wait_for()
        assert page.url.startswith(f"{cluster.environment['DET_MASTER']}/det/"), page.url
        page.goto("/det/logout")
        page.get_by_label("User").wait_for()
    page.goto("/det/experiments/1/trials?sort=-SORT_BY_ID")
    visitor.login("admin", PASSWORD, "/det/experiments/1/trials?sort=-SORT_BY_ID")
    assert page.url.endswith("/det/experiments/1/trials?sort=-SORT_BY_ID")
    visitor.saw_no_problem(but=("401", "403"))


def test_viewer_sees_no_action_that_would_be_refused(visit: Callable[..., Visitor], cluster: Embedded) -> None:
    workspace = "read only"
    for command in (
        ("user", "create", "vera", "--password", "V3ra-secret-pw"), ("workspace", "create", workspace), ("project", "create", workspace, "seen"),
        ("rbac", "assign-role", "Viewer", "--username-to-assign", "vera", "--workspace-name", workspace),
    ):  # fmt: skip
        done = cluster.det(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    done = cluster.det(
        "experiment",
        "create",
        str(DIGITS / "const.yaml"),
        str(DIGITS),
        "--config",
        f"workspace={workspace}",
        "--config",
        "project=seen",
    )
    number = created(done.stdout)
    hidden = cluster.create(SINGLE.format(name="of nobody else"), LONG)
    assert cluster.det("workspace", "create", "private").returncode == 0
    assert cluster.det("project", "create", "private", "hidden").returncode == 0
    (project,) = cluster.rows("SELECT id FROM projects WHERE name = 'hidden'")[0]
    assert cluster.det("experiment", "move", str(hidden), "private", "hidden").returncode == 0, project
    visitor = visit()
    visitor.login("vera", "V3ra-secret-pw")
    page = visitor.page
    page.goto(f"/det/experiments/{number}")
    expect(page.get_by_text("You may read this experiment.")).to_be_visible()
    for name in ("Pause", "Kill", "Fork", "Delete", "Edit", "Archive"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    page.goto(f"/det/experiments/{hidden}")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    page.goto("/det/admin")
    expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
    visitor.saw_no_problem(but=("401", "403", "404"))
    for each in (number, hidden):
        cluster.det("experiment", "kill", str(each))


def test_newcomer_on_a_phone_starts_an_experiment_and_finds_why_it_failed(
    visit: Callable[..., Visitor], cluster: Embedded
) -> None:
    """320 pixels wide, by what is in sight: the menu, links and buttons."""
    visitor = visit(width=320, height=640)
    visitor.login("admin", PASSWORD)
    page = visitor.page

    def fits(what: str) -> None:
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{what}: {wider} px too wide"

    page.get_by_role("button", name="menu", exact=True).click()
    page.get_by_role("link", name="New experiment").first.click()
    page.get_by_label("Configuration (YAML)").fill(SINGLE.format(name="by phone"))
    expect(page.get_by_text("at most 1 at a time")).to_be_visible()
    fits("the launch form")
    page.get_by_label("or single files").set_input_files(
        {"name": "train.py", "mimeType": "text/x-python", "buffer": b"raise SystemExit('no data')"}
    )
    page.get_by_role("button", name="Start it").click()
    page.wait_for_url(re.compile(r"/det/experiments/\d+$"))
    expect(page.locator("header .state")).to_contain_text("error")
    fits("the experiment")
    page.get_by_role("link", name="Trials", exact=False).first.click()
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", name=re.compile(r"^Trial \d+$"))).to_be_visible()
    expect(page.locator("ul.why").first).to_contain_text("exited with code 1")
    fits("the trial")
    page.get_by_role("link", name="Logs").click()
    expect(page.locator(".log")).to_contain_text("no data")
    fits("the log")


def test_keyboard_alone_logs_in_opens_a_dialog_and_leaves_it(visit: Callable[..., Visitor], cluster: Embedded) -> None:
    page = visit().page
    page.goto("/det/experiments/1")
    page.get_by_label("User").wait_for()

    def tab_to(name: str, most: int = 60) -> None:
        focused = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? '').trim()"
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(focused) == name:
                return
        raise AssertionError(f"no Tab leads to {name}")

    page.get_by_label("User").focus()
    page.keyboard.type("admin")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^1 "))).to_be_visible()
    tab_to("Fork")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)"), "the focus is in it"
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert page.evaluate("document.activeElement.innerText") == "Fork", "and where it was before"


def test_keyboard_alone_reaches_a_trial(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/experiments/1/trials")
    page.get_by_role("table").wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "/det/trials/1":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Trial 1", exact=True)).to_be_visible()


def test_two_tabs_show_the_same_and_addresses_hold_the_state(admin: Visitor) -> None:
    address = "/det/experiments/1?x=time&log=1&smooth=0.5&metric=loss"
    pages = [admin.page, admin.open()]
    for page in pages:
        page.goto(address)
        expect(page.get_by_role("combobox", name="by", exact=True)).to_have_value("time")
        expect(page.get_by_label("smoothing")).to_have_value("0.5")
        expect(page.locator("figure")).to_have_count(1)
    assert points(pages[0], "training.loss") == points(pages[1], "training.loss") > 0


def test_pictures_can_be_saved(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/experiments/1")
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg "), ("CSV", b"steps,trial ")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"save validation.accuracy as {kind}").click()
        assert waiting.value.path().read_bytes().startswith(start)
        assert waiting.value.suggested_filename == f"validation.accuracy.{kind.lower()}"


def test_task_is_started_watched_and_ended_in_the_browser(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/tasks")
    page.get_by_role("button", name="Command").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("says hello")
    dialog.get_by_label("Command, a line for the shell").fill("echo hello from a task; sleep 600")
    dialog.get_by_label("Slots").fill("0")
    dialog.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="says hello")).to_be_visible()
    expect(page.get_by_role("log").get_by_text("hello from a task")).to_be_visible()
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    expect(page.locator("header .state")).to_contain_text(re.compile("terminated|canceled"))


def test_page_is_of_use_behind_a_slow_line_on_a_slow_machine(admin: Visitor) -> None:
    """A line of 1.6 Mbit/s with 150 ms to the server and a sixth of the processor: rows, a click, and a chart."""
    page = admin.page
    page.goto("/det/account")
    cdp: Any = page.context.new_cdp_session(page)
    cdp.send("Network.enable")
    cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
    line = {"offline": False, "latency": 150, "downloadThroughput": 200_000, "uploadThroughput": 93_750}
    cdp.send("Network.emulateNetworkConditions", line)
    cdp.send("Emulation.setCPUThrottlingRate", {"rate": 6})
    began = time.monotonic()
    page.goto("/det/projects/1", wait_until="commit")
    page.locator("tbody tr").first.wait_for()
    rows_s = time.monotonic() - began
    began = time.monotonic()
    page.get_by_role("link", name="1", exact=True).click()
    page.locator("figure[data-points]").first.wait_for()
    chart_s = time.monotonic() - began
    cdp.detach()
    assert rows_s < 8, f"the first rows took {rows_s:.1f} s"
    assert chart_s < 8, f"the first chart took {chart_s:.1f} s"


def test_open_page_says_that_the_cluster_has_newer_ones_and_loads_them(
    admin: Visitor, cluster: Embedded, tmp_path: Path
) -> None:
    page = admin.page
    shutil.copytree(REPOSITORY / "web", tmp_path / "web")
    with (tmp_path / "web" / "static" / "style" / "app.css").open("a") as style:
        style.write("/* of the next release */\n")
    (tmp_path / "sitecustomize.py").write_text(_OTHER_PAGES.format(str(tmp_path)))
    page.goto("/det/admin/users")  # no stream says here what changes
    page.get_by_role("row").nth(1).wait_for()
    before = page.locator("script").get_attribute("src")
    newer = page.get_by_text("The cluster has newer pages")
    page.get_by_label("filter by name").fill("a")
    expect(newer).to_have_count(0)
    cluster.environment["PYTHONPATH"] = str(tmp_path)
    os.kill(cluster.pid("api"), signal.SIGKILL)
    cluster.up()
    page.get_by_label("filter by name").fill("adm")
    expect(newer).to_be_visible()
    page.get_by_role("button", name="Load them").click()
    expect(newer).to_have_count(0)
    page.get_by_role("row").nth(1).wait_for()
    assert page.locator("script").get_attribute("src") != before
