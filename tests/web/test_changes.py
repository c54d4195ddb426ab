"""What is changed in the pages as by `det`: by administrators, by owners, and by no user who may not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.kit.browser import WAIT_MS, Visitor
from tests.kit.embedded import Embedded
from tests.web.conftest import DIGITS, created, pictures
from tests.web.test_operators import no_barrier

expect.set_options(timeout=WAIT_MS)


def dialog_of(page: Page, button: str | Locator) -> Locator:
    """The dialog that a button opens."""
    (page.get_by_role("button", name=button, exact=True) if isinstance(button, str) else button).click()
    return page.locator("dialog[open]").last


def labelled(dialog: Locator, label: str) -> Locator:
    """The field whose label begins so; that of `Name` is the whole of it."""
    return dialog.get_by_label(re.compile(f"^{label}{'$' if label == 'Name' else ''}"))


def fill(dialog: Locator, fields: dict[str, str]) -> None:
    """Type into fields, or choose in them, by what their labels begin with."""
    for label, text in fields.items():
        field = labelled(dialog, label)
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(text)
        else:
            field.fill(text)


def refused(dialog: Locator, button: str, field: str, told: str) -> None:
    """Press it: the dialog stays open, and says at the field what was expected there."""
    dialog.get_by_role("button", name=button, exact=True).click()
    found = labelled(dialog, field)
    expect(found).to_have_attribute("aria-invalid", "true")
    expect(found).to_be_focused()
    expect(found).to_have_accessible_description(re.compile(re.escape(told)))


def done(dialog: Locator, button: str) -> None:
    """Press it; what was asked is over then."""
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_have_count(0)


def test_what_is_shared_is_changed_and_moved(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/workspaces")
    dialog = dialog_of(page, "New workspace")
    fill(dialog, {"Name": "vision", "Role of all users here": "viewer", "Where checkpoints go": "{no"})
    refused(dialog, "Create", "Where checkpoints go", "It is no JSON")
    fill(dialog, {"Where checkpoints go": ""})
    admin.picture(pictures(), "new-workspace")
    done(dialog, "Create")
    page.get_by_role("link", name="vision", exact=True).click()
    dialog = dialog_of(page, "New project")
    fill(dialog, {"Name": "cats"})
    done(dialog, "Create")
    dialog = dialog_of(page, "edit project cats")
    fill(dialog, {"Name": "lions"})
    done(dialog, "Save")
    row = page.get_by_role("row").filter(has_text="lions")
    row.get_by_role("button", name="Archive").click()
    expect(row.locator(".tag")).to_have_text("archived")
    row.get_by_role("button", name="Unarchive").click()
    page.get_by_role("link", name="Policies").click()
    dialog = dialog_of(page, "set the rules for experiments")
    dialog.get_by_label("Rules").fill("constraints:\n  priority_limit: 10\n")
    no_barrier(page)
    done(dialog, "Save")
    expect(page.locator("main pre")).to_contain_text('"priority_limit": 10')
    dialog = dialog_of(page, page.locator("main").get_by_role("button", name="Remove", exact=True))
    expect(dialog).to_contain_text("constraints")
    done(dialog, "Remove")
    page.get_by_role("link", name="Members").click()
    assert cluster.det("user", "create", "mira", "--password", "M1ra-secret-pw").returncode == 0
    dialog = dialog_of(page, "Give a role")
    fill(dialog, {"Name of the user": "mira"})
    dialog.get_by_label("Role").select_option(label="Editor")
    done(dialog, "Give it")
    row = page.get_by_role("row").filter(has_text="mira")
    done(dialog_of(page, row.get_by_role("button", name="Take it back")), "Take it back")
    expect(row).to_have_count(0)
    page.goto("/det/models")
    dialog = dialog_of(page, "New model")
    fill(dialog, {"Name": "lion finder"})
    done(dialog, "Create")
    page.get_by_role("link", name="lion finder").click()
    dialog = dialog_of(page, "Move")
    dialog.get_by_label("Workspace").select_option(label="vision")
    done(dialog, "Move")
    dialog = dialog_of(page, "Edit")
    fill(dialog, {"Name": "big cat finder"})
    done(dialog, "Save")
    expect(page.get_by_role("heading", name="big cat finder")).to_be_visible()
    shown = json.loads(cluster.det("model", "describe", "big cat finder", "--json").stdout)
    assert cluster.rows(f"SELECT name FROM workspaces WHERE id = {shown['workspaceId']}") == [("vision",)]


def test_webhook_takes_every_trigger_and_shows_its_secret_once(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/webhooks")
    dialog = dialog_of(page, "New webhook")
    fill(
        dialog,
        {"Name": "nightly", "Address": "https://hooks.example.com/x", "When a validation metric": "accuracy ~ 0.9"},
    )
    refused(dialog, "Create", "When a validation metric", "expected a metric, one of > >= < <=, and a number")
    fill(dialog, {"When a validation metric": "accuracy >= 0.9", "When a line of a log": "out of memory"})
    dialog.get_by_label("When training code asks for it").check()
    dialog.locator("select", has=page.locator("option[value=SPECIFIC]")).select_option("SPECIFIC")
    no_barrier(page)
    admin.picture(pictures(), "new-webhook")
    done(dialog, "Create")
    expect(page.get_by_label("the secret")).to_contain_text("shown once")
    dialog = dialog_of(page, "edit webhook nightly")
    fill(dialog, {"Address": "https://hooks.example.com/y"})
    done(dialog, "Save")
    (made,) = json.loads(cluster.det("webhook", "list", "--json").stdout)
    assert made["url"] == "https://hooks.example.com/y"
    assert len(made["triggers"]) == 5


def test_administrator_sets_the_cluster_up(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/admin/pools")
    dialog = dialog_of(page, "New pool")
    fill(dialog, {"Name": "a100", "Scheduler": "fair_share"})
    done(dialog, "Create")
    dialog = dialog_of(page, "settings of a100")
    text = dialog.get_by_label("Settings").input_value()
    dialog.get_by_label("Settings").fill(text.replace('"preemption": false', '"preemption": true'))
    no_barrier(page)
    admin.picture(pictures(), "pool-settings")
    done(dialog, "Save")
    described = json.loads(cluster.det("resource-pool", "settings", "a100", "--json").stdout)
    assert (described["scheduler"], described["preemption"]) == ("fair_share", True)
    row = page.get_by_role("row").filter(has_text="a100")
    row.get_by_role("button", name="Default without").click()
    expect(row.get_by_role("button", name="Default without")).to_have_count(0)
    expect(row.get_by_role("button", name="Remove")).to_have_count(0)  # a default can't go
    former = page.get_by_role("row").filter(has=page.get_by_role("link", name="default", exact=True))
    former.get_by_role("button", name="Default without").click()
    done(dialog_of(page, row.get_by_role("button", name="Remove")), "Remove")
    expect(row).to_have_count(0)
    page.goto("/det/cluster")
    dialog = dialog_of(page, page.get_by_role("button", name=re.compile("^slots of ")))
    dialog.get_by_role("row").nth(2).get_by_role("button", name="Disable").click()
    expect(dialog.get_by_role("row").nth(2)).to_contain_text("no")
    no_barrier(page)
    admin.picture(pictures(), "agent-slots")
    dialog.get_by_role("row").nth(2).get_by_role("button", name="Enable").click()
    expect(dialog.get_by_role("row").nth(2)).to_contain_text("yes")
    dialog.get_by_label("close").click()
    dialog = dialog_of(page, "New join token")
    fill(dialog, {"Number of hosts": "2"})
    done(dialog, "Create")
    tokens = page.get_by_label("how hosts join", exact=True)
    expect(tokens).to_contain_text("agent run --join-token")
    no_barrier(page)
    admin.picture(pictures(), "join-tokens")
    done(dialog_of(page, tokens.get_by_role("button", name="Revoke")), "Revoke")
    expect(tokens.get_by_role("table")).to_contain_text("revoked")
    assert cluster.det("user", "create", "otto", "--password", "Ott0-secret-pw").returncode == 0
    page.goto("/det/admin/users")
    dialog = dialog_of(page, "edit otto")
    fill(
        dialog,
        {
            "Shown as": "Otto Lilienthal",
            "Tasks run on the hosts as user": "otto",
            "with the user id": "1001",
            "in the group": "pilots",
            "with the group id": "1002",
        },
    )
    no_barrier(page)
    done(dialog, "Save")
    row = page.get_by_role("row").filter(has_text="Otto Lilienthal")
    expect(row).to_be_visible()
    admin.picture(pictures(), "users")
    assert cluster.rows("SELECT agent_uid, agent_gid FROM users WHERE username = 'otto'") == [(1001, 1002)]
    page.goto("/det/account")
    dialog = dialog_of(page, "New token")
    fill(dialog, {"What it is for": "reports", "It may be used for": "read-only"})
    done(dialog, "Create")
    expect(page.get_by_text("It is shown once")).to_be_visible()
    dialog = dialog_of(page, page.get_by_role("button", name=re.compile("describe token")).first)
    fill(dialog, {"What it is for": "nightly reports"})
    done(dialog, "Save")
    expect(page.get_by_role("table")).to_contain_text("nightly reports")


def test_task_of_ones_own_is_started_limited_and_run_again(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/tasks")
    dialog = dialog_of(page, "Task")
    dialog.get_by_label("Configuration").fill("entrypoint: [sleep, '600']\nresources: {slots: 0}\n")
    no_barrier(page)
    done(dialog, "Start")
    page.wait_for_url(re.compile(r"/det/tasks/[0-9a-f-]+"))
    dialog = dialog_of(page, "Limits")
    fill(dialog, {"Ends after so long": "soon"})
    refused(dialog, "Save", "Ends after so long", "Invalid duration: soon: expected 1s to 365d")
    fill(dialog, {"Ends after so long": "8h"})
    done(dialog, "Save")
    first = page.url
    done(dialog_of(page, "Run again"), "Run again")
    page.wait_for_url(lambda url: url != first)
    done(dialog_of(page, "Kill"), "Kill")
    page.goto(first)
    done(dialog_of(page, "Kill"), "Kill")


def test_refusal_stands_at_the_field_that_it_is_about(admin: Visitor, cluster: Embedded) -> None:
    """Of forms that are lists of fields, of others, of those on a page; what is about no field is above the buttons."""
    page = admin.page
    page.goto("/det/admin/users")
    dialog = dialog_of(page, "New user")
    fill(dialog, {"Name": "admin", "Password": "A-secret-pw-1"})
    refused(dialog, "Save", "Name", "User 'admin' already exists")
    fill(dialog, {"Name": "fine", "Password": "x" * 2000})
    refused(dialog, "Save", "Password", "2000 characters: expected at most")
    expect(dialog.locator("[aria-invalid]")).to_have_count(1)
    no_barrier(page)
    admin.picture(pictures(), "refused")
    dialog.get_by_label("close").click()
    page.goto("/det/projects/1")
    page.get_by_label("launch 1 again").click()
    dialog = page.locator("dialog[open]")
    fill(dialog, {"Configuration": "searcher: {name: random, metric: x}\n"})
    refused(dialog, "Fork", "Configuration", "entrypoint")
    dialog.get_by_label("close").click()
    page.get_by_label("choose 1", exact=True).check()
    dialog = dialog_of(page, "Log retention")
    fill(dialog, {"Days after": "99999"})
    refused(dialog, "Save", "Days after", "99999: expected -1")
    dialog.get_by_label("close").click()
    page.goto("/det/account")
    page.get_by_label("New password").fill("x" * 2000)
    refused(page.locator("main"), "Change it", "New password", "2000 characters: expected at most")
    page.goto("/det/workspaces")
    dialog = dialog_of(page, "New workspace")
    fill(dialog, {"Name": "gone"})
    page.route("**/api/v1/workspaces", lambda route: route.abort())
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_have_text("The API does not answer.")
    page.unroute("**/api/v1/workspaces")
    expect(page.locator(".toast.bad")).to_have_count(0)
    assert cluster.det("user", "list").stdout.count("fine") == 0


def test_search_is_steered_by_hand(admin: Visitor, cluster: Embedded) -> None:
    searcher = {"name": "random", "metric": "x", "max_length": 1000, "max_trials": 2, "max_concurrent_trials": 1}
    config = {"name": "steered", "entrypoint": "sleep 600", "searcher": searcher,
              "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}}}  # fmt: skip
    number = cluster.create(json.dumps(config), "")
    page = admin.page
    page.goto(f"/det/experiments/{number}/trials")
    rows = page.get_by_role("table", name="trials").locator("tbody tr")
    expect(rows).to_have_count(1)
    dialog = dialog_of(page, "Add a trial")
    fill(dialog, {"A value for each": '{"rate": 1}'})
    dialog.get_by_role("button", name="Add it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("lr is missing")
    fill(dialog, {"A value for each": '{"lr": 0.25}'})
    no_barrier(page)
    done(dialog, "Add it")
    added = rows.filter(has_text="0.25")
    expect(added).to_have_count(1)
    added.get_by_role("link").first.click()
    dialog = dialog_of(page, "Steer")
    fill(dialog, {"The search is to": "stop"})
    done(dialog, "Do it")
    expect(page.get_by_text(re.compile("a user stopped"))).to_be_visible()
    cluster.det("experiment", "kill", str(number))


def test_user_is_offered_nothing_that_would_be_refused(visit: Callable[..., Visitor], cluster: Embedded) -> None:
    assert cluster.det("user", "create", "vera", "--password", "V3ra-secret-pw").returncode == 0
    number = created(cluster.det("experiment", "create", str(DIGITS / "const.yaml"), str(DIGITS), "--paused").stdout)
    made = cluster.det("template", "set", "shared", str(DIGITS / "const.yaml"))
    assert made.returncode == 0, made.stdout + made.stderr
    visitor = visit()
    visitor.login("vera", "V3ra-secret-pw")
    page = visitor.page
    never = re.compile(
        "^(Edit|Delete|Kill|Cancel|Activate|Archive|Settings|Disable|Remove|Log retention|Files|Test|Limits|Change|Move|Steer|Add a trial)$"
    )
    for address, there in {
        f"/det/experiments/{number}": "header .row", "/det/experiments/1/checkpoints": "table", "/det/trials/1": "figure",
        "/det/projects/1": "table", "/det/workspaces": "table", "/det/workspaces/1": "table", "/det/models": ".empty, table",
        "/det/templates": "table", "/det/webhooks": ".empty, table", "/det/cluster": "table", "/det/jobs": ".empty, table",
    }.items():  # fmt: skip
        page.goto(address)
        page.locator(there).first.wait_for()
        page.wait_for_timeout(300)  # what is drawn late as well
        expect(page.get_by_role("button", name=never)).to_have_count(0)
    visitor.saw_no_problem(but=("401",))  # of the question, before the login, who this is
    cluster.det("experiment", "kill", str(number))
