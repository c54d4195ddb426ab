"""Pictures of searches and of the cluster: what they say is what is stored, and so is what is saved of them."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from api.services.pool_samples import PoolSamples
from database.session import Database
from database.types import utc_now
from tests.kit.browser import WAIT_MS, Visitor
from tests.kit.embedded import Embedded
from tests.web.conftest import PASSWORD, pictures
from tests.web.test_journeys import LONG, SINGLE

expect.set_options(timeout=WAIT_MS)


def saved(page: Page, name: str) -> str:
    """The file that a button saves."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=name, exact=True).click()
    return waiting.value.path().read_text()


def on_any_page(admin: Visitor) -> Page:
    """A page that is ready: modules can be imported into it."""
    admin.page.goto("/det/dashboard")
    admin.page.get_by_role("navigation", name="main").wait_for()
    return admin.page


def calls(page: Page, module: str, expression: str) -> Any:
    """The value of an expression in which `m` is a module of the pages."""
    (main,) = page.evaluate("[...document.querySelectorAll('script[type=module]')].map((each) => each.src)")
    address = main.replace("main.js", module)
    return page.evaluate(f"import({address!r}).then((m) => {expression})")


def test_heat_map_shows_the_best_trial_of_each_cell(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/experiments/1/hyperparameters?across=batch_size&up=learning_rate")
    cells = page.locator("svg.heat g.cell")
    expect(cells.first).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save heat map as CSV"))))
    assert sum(int(row["trials"]) for row in rows) == 16
    best = max(float(row["best"]) for row in rows)
    assert best == cluster.rows("SELECT max(searcher_metric) FROM trials WHERE experiment_id = 1")[0][0]
    assert cells.count() == len(rows)
    cells.first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"at=\d+-\d+"))
    table = page.get_by_role("table", name="trials of the cell")
    expect(table.get_by_role("row")).to_have_count(1 + int(rows[0]["trials"]))
    page.keyboard.press("ArrowUp")
    admin.picture(pictures(), "heat-map")
    page.get_by_role("combobox", name="cell shows").select_option("mean")
    expect(page).to_have_url(re.compile("cell=mean"))
    page.reload()
    expect(table).to_be_visible()
    page.get_by_role("combobox", name="across").select_option("alpha")
    expect(table).to_be_hidden()


def test_ranges_of_a_heat_map_follow_the_hyperparameter(admin: Visitor) -> None:
    page = on_any_page(admin)

    def axis(values: str, spec: str) -> Any:
        return calls(
            page, "heatmap.js",
            f"((a, v) => [a.places.map((p) => p.label), v.map(a.placeOf)])(m.axisOf({values}, {spec}), {values})",
        )  # fmt: skip

    few, places = axis("[3, 1, null, 2, 1]", "undefined")
    assert (few, places) == (["1", "2", "3"], [2, 0, -1, 1, 0])
    spread = "Array.from({length: 100}, (_, i) => 10 ** (-4 + (3 * i) / 99))"
    log, places = axis(spread, "{type: 'log', base: 10, minval: -5, maxval: 0}")
    assert (log[0], log[-1], len(log)) == ("1e-5 to 3.2e-5", "0.32 to 1", 10)
    assert places == sorted(places)
    assert (places[0], places[-1]) == (2, 8)
    whole, places = axis("Array.from({length: 64}, (_, i) => i + 1)", "{type: 'int', minval: 1, maxval: 64}")
    assert (whole[0], whole[-1], max(places)) == ("1 to 7", "64 to 70", 9)
    names, places = axis("Array.from({length: 40}, (_, i) => `n${i % 20}`).concat('n0')", "undefined")
    assert (len(names), names[-1], places[0], places[-1]) == (12, "9 others", names.index("n0"), names.index("n0"))
    nested = calls(page, "heatmap.js", "m.specOf({a: {b: {type: 'log'}}, 'c.d': {type: 'int'}}, 'a.b').type")
    assert nested == "log"


def test_cells_and_colours_of_a_heat_map(admin: Visitor) -> None:
    page = on_any_page(admin)
    cells = calls(
        page, "heatmap.js",
        "[true, false].map((smaller) => [...m.cellsOf(m.axisOf([1, 1, 2]), m.axisOf(['a', 'a', null]),"
        " [1, 1, 2], ['a', 'a', null], [1, 3, 5], smaller).values()])",
    )  # fmt: skip
    assert cells == [[{"i": 0, "j": 0, "members": [0, 1], "best": best, "mean": 2}] for best in (1, 3)]
    steps = calls(page, "heatmap.js", "[0, 3.5, 7, -9, 9].map(m.stepsOf([0, 7], false).stepOf)")
    assert steps == [1, 4, 7, 1, 7]
    assert calls(page, "heatmap.js", "[0, 7].map(m.stepsOf([0, 7], true).stepOf)") == [7, 1]
    assert calls(page, "heatmap.js", "m.stepsOf([2, 2], true).stepOf(2)") == 7


def test_heat_map_is_drawn_of_10000_trials(admin: Visitor) -> None:
    """In time: what the browser does with them, without the request."""
    page = on_any_page(admin)
    took = calls(
        page, "heatmap.js",
        "((xs) => { const from = performance.now(); const a = m.axisOf(xs, {type: 'log'});"
        " const cells = m.cellsOf(a, a, xs, xs, xs, true); return [performance.now() - from, cells.size]; })"
        "(Array.from({length: 10000}, (_, i) => 1e-5 + i * 1e-5))",
    )  # fmt: skip
    assert took[0] < 500, "milliseconds"
    assert took[1] == 10


def test_importance_says_what_matters_and_how_sure_that_is(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/experiments/1/hyperparameters")
    bars = page.get_by_role("img", name=re.compile("^importance: "))
    expect(bars).to_be_visible()
    card = page.get_by_label("importance", exact=True)
    expect(card).to_contain_text("R²")
    expect(card).to_contain_text("From 16 trials")
    rows = list(csv.DictReader(io.StringIO(saved(page, "save importance as CSV"))))
    assert {row["hyperparameter"] for row in rows} == {"hidden_size", "learning_rate", "alpha", "batch_size"}
    assert [float(row["importance"]) for row in rows] == sorted(
        (float(row["importance"]) for row in rows), reverse=True
    )
    admin.picture(pictures(), "importance")
    for r2, word in ((0.05, "explain little"), (0.4, "explain a part"), (0.9, "explain most"), (-3, "R² 0.00")):
        assert word in calls(page, "importance.js", f"m.meaning({r2}, 'loss')")


def test_importance_of_too_few_trials_says_why_there_is_none(admin: Visitor, cluster: Embedded) -> None:
    config = (
        "name: two\nentrypoint: python3 train.py\nmax_restarts: 0\nhyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
        "searcher: {name: random, metric: loss, max_trials: 2, max_length: {batches: 1}}\n"
    )
    script = (
        "import determined as det\nwith det.core.init() as c:\n"
        "    c.train.report_validation_metrics(1, {'loss': det.get_cluster_info().trial.hparams['x']})\n"
    )
    number = cluster.create(config, script)
    assert cluster.det("experiment", "wait", str(number)).returncode == 0
    admin.page.goto(f"/det/experiments/{number}/hyperparameters")
    expect(admin.page.get_by_label("importance", exact=True)).to_contain_text(
        "2 trials have the metric: at least 8 are needed"
    )
    expect(admin.page.get_by_label("heat map", exact=True)).to_have_count(0)


def test_any_metric_is_explained_and_brushes_are_in_the_address(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/experiments/1/hyperparameters")
    page.get_by_label("metric", exact=True).fill("training.loss")
    page.get_by_label("metric", exact=True).press("Enter")
    page.get_by_role("combobox", name="best is the").select_option("smallest")
    expect(page).to_have_url(re.compile(r"of=training\.loss.*best=smallest"))
    lost = {json.loads(text)["training"]["loss"]["last"] for (text,) in cluster.rows(
        "SELECT summary FROM trials WHERE experiment_id = 1")}  # fmt: skip
    expect(page.get_by_role("heading", name="Two hyperparameters against training.loss")).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save heat map as CSV"))))
    assert min(float(row["best"]) for row in rows) == pytest.approx(min(lost), rel=1e-9)
    expect(page.get_by_label("importance", exact=True)).to_contain_text("What matters for training.loss")
    picture = page.get_by_role("img", name=re.compile("^a line for each of 16 trials"))
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] * 50 / 900  # the first axis
    page.mouse.move(x, box["y"] + box["height"] * 0.15)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] * 0.5, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"brush=\w+~0\.\d+~0\.\d+|brush=\w+%7E0"))
    told = page.get_by_label("parallel coordinates").get_by_role("status")
    kept = int(told.inner_text().split()[0])
    assert 0 < kept < 16
    page.goto(page.url)
    expect(told).to_have_text(f"{kept} of 16 trials")
    admin.picture(pictures(), "brushed")
    page.get_by_role("button", name="Clear brushes").click()
    expect(told).to_have_text("16 of 16 trials")
    expect(page).not_to_have_url(re.compile("brush="))
    page.goto("/det/experiments/1/hyperparameters?of=validation.nothing")
    expect(page.get_by_role("heading", name="Two trials with validation.nothing are needed")).to_be_visible()
    page.goto("/det/experiments/1/hyperparameters?of=loss")
    expect(page.get_by_role("alert")).to_contain_text("'loss': expected group.name")


def test_curves_of_a_group_become_a_line_and_a_band(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/experiments/1")
    chart = page.locator('figure[aria-label^="validation.accuracy:"]')
    expect(chart).to_be_visible()
    page.get_by_role("combobox", name="group").select_option("batch_size")
    legend = page.get_by_role("list", name="groups of validation.accuracy")
    expect(legend.get_by_role("listitem")).to_have_count(4)
    texts = legend.get_by_role("listitem").all_inner_texts()
    assert [text.split()[0] for text in texts] == ["16", "32", "64", "128"]
    assert sum(int(number) for number in re.findall(r"(\d+) trials?,", " ".join(texts))) == 16
    expect(chart).to_have_attribute("aria-label", re.compile("4 curves"))
    admin.picture(pictures(), "groups")
    page.get_by_role("combobox", name="line").select_option("mean")
    expect(page).to_have_url(re.compile("group=h.batch_size.*middle=mean"))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="save validation.accuracy as CSV").click()
    assert waiting.value.path().read_text().splitlines()[0].startswith('steps,"16, mean",')
    page.get_by_role("combobox", name="group").select_option("all trials")
    expect(legend.get_by_role("listitem")).to_have_text(re.compile("all trials16 trials"))
    page.get_by_role("combobox", name="group").select_option("each trial")
    expect(chart).to_have_attribute("aria-label", re.compile("16 curves"))


def test_groups_and_bands_are_what_they_should_be(admin: Visitor) -> None:
    page = on_any_page(admin)
    found = "{trialIds: [1, 2, 3], hyperparameters: {lr: [0.1, 0.1, 0.2], 'a.b': ['x', 'x', null]}}"
    same = calls(page, "groups.js", f"m.groupsOf({found}, '=', {{}})")
    assert same == [{"label": "lr 0.1, a.b x", "ids": [1, 2]}, {"label": "lr 0.2, a.b \u2013", "ids": [3]}]
    by = calls(page, "groups.js", f"m.groupsOf({found}, 'h.a.b', {{}})")
    assert by == [{"label": "x", "ids": [1, 2]}, {"label": "no value", "ids": [3]}]
    assert calls(page, "groups.js", f"m.groupsOf({found}, 'h.none', {{}})") == [
        {"label": "all trials", "ids": [1, 2, 3]}
    ]
    space = "{a: {b: {type: 'int'}, c: {type: 'const', val: 1}}, d: {type: 'log'}, e: 5}"
    assert calls(page, "groups.js", f"m.openNames({space})") == ["a.b", "d"]
    # between its points by a straight line, nothing outside of them, and what is no number is passed over
    assert calls(page, "groups.js", "m.onGrid([2, 4, 5, 6], [2, 4, NaN, 8], [1, 2, 3, 5, 6, 7]).map((v) => v ?? null)") == [
        None, 2, 3, 6, 8, None]  # fmt: skip
    few = calls(page, "groups.js", "m.bandOf([[1, undefined], [5, 3], [9, undefined]], 'median')")
    assert few == [[5, 3], [1, 3], [9, 3]]
    many = calls(page, "groups.js", "m.bandOf(Array.from({length: 11}, (_, i) => [i * i]), 'mean')")
    assert many == [[35], [1], [81]]
    assert calls(page, "groups.js", "m.gridOf([[3, 1], [2, NaN]])") == [1, 2, 3]
    assert calls(page, "groups.js", "m.gridOf([Array.from({length: 5000}, (_, i) => i)]).length") == 600


def test_slots_over_time_are_those_that_trials_held(admin: Visitor) -> None:
    page = admin.page
    page.goto("/det/cluster/slots?span=hour")
    picture = page.get_by_role("slider", name=re.compile("slots in use and waited for"))
    expect(picture).to_be_visible()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save slots over time as CSV"))))
    assert 230 <= len(rows) <= 240
    assert max(float(row["admin"]) for row in rows) > 0.5
    picture.focus()
    page.keyboard.press("ArrowLeft")
    expect(picture).to_have_attribute("aria-valuetext", re.compile("in use"))
    admin.picture(pictures(), "slots")
    page.get_by_role("combobox", name="span").select_option("week")
    expect(page).to_have_url(re.compile("span=week"))
    page.get_by_role("combobox", name="pool").select_option("default")
    expect(page).to_have_url(re.compile("pool=default"))
    expect(picture).to_be_visible()


def test_fair_shares_stand_beside_what_users_held(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    number = cluster.create(SINGLE.format(name="shared"), LONG)
    cluster.until(cluster.training, 60, "it trains")
    samples = PoolSamples(Database(f"sqlite:///{cluster.folder / 'undeterred.db'}"))
    samples.record(utc_now() - timedelta(minutes=10))
    page.goto("/det/cluster/slots?span=hour")
    page.get_by_role("combobox", name="show").select_option("use and fair shares")
    expect(page).to_have_url(re.compile("view=fair"))
    picture = page.get_by_role("slider", name=re.compile("slots in use and waited for"))
    expect(picture.locator("polyline[stroke-dasharray='6 4']").first).to_be_attached()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save slots over time as CSV"))))
    known = [row for row in rows if row["fair share of admin"]]
    assert 35 <= len(known) < 240, "from ten minutes ago on"
    assert float(known[0]["fair share of admin"]) == 1  # its one trial can use no more
    assert {row["in service"] for row in known} == {"2"}
    picture.focus()
    page.keyboard.press("ArrowLeft")
    expect(picture).to_have_attribute("aria-valuetext", re.compile(r"admin [0-9.]+ of a fair [01]"))
    admin.picture(pictures(), "fair-shares")
    cluster.det("experiment", "kill", str(number))


def test_areas_lie_on_each_other(admin: Visitor) -> None:
    page = on_any_page(admin)
    answer = "{users: {a: [1, 2], b: [0, 3]}, others: [1, 0], hidden: [0, 0], waiting: [0, 0]}"
    assert calls(page, "slots.js", f"m.layersOf({answer}).map((layer) => layer.label)") == ["a", "b", "other users"]
    assert calls(page, "slots.js", f"m.stacked(m.layersOf({answer}))") == [
        {"low": [0, 0], "high": [1, 2]}, {"low": [1, 2], "high": [1, 5]}, {"low": [1, 5], "high": [2, 5]}]  # fmt: skip
    assert calls(page, "slots.js", "[1, 1.2, 7, 94].map(m.round)") == [1, 2, 8, 100]


# -- what is saved -------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"
#: Address; the name of a picture there; its title, and an entry of its legend.
SAVED = [
    ("/det/experiments/1", "validation.accuracy", "validation.accuracy", "trial 1"),
    ("/det/experiments/1?group=h.batch_size", "validation.accuracy", "validation.accuracy", "16, median"),
    ("/det/experiments/1/hyperparameters", "importance", "What matters for accuracy", "give or take"),
    ("/det/experiments/1/hyperparameters", "heat map", "batch_size and alpha against accuracy", "best accuracy ≤ "),
    ("/det/experiments/1/hyperparameters", "parallel coordinates", "Hyperparameters against accuracy", "best"),
    ("/det/experiments/1/hyperparameters", "alpha against accuracy", "alpha against accuracy", "best trial"),
    ("/det/experiments/1/hyperparameters?of=training.loss&best=smallest", "importance",
     "What matters for training.loss", "give or take"),
    ("/det/experiments/1/search", "rungs", "Rungs", "went on"),
    ("/det/experiments/1/timeline", "slots over time", "Slots over time of experiment 1", "waits"),
    ("/det/trials/1/logs", "lines over time", "Lines of trial 1 over time", "warning: "),
    ("/det/cluster/slots?span=hour", "slots over time", "Slots over time", "waited for"),
    ("/det/cluster/slots?span=hour&view=fair", "slots over time", "Slots over time", "fair share"),
]  # fmt: skip


def brightness(colour: str) -> float:
    return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) / (3 * 255)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_picture_is_saved_as_png_svg_and_csv(visit: Callable[..., Visitor], scheme: str) -> None:
    """Each file needs nothing else: its colours are those of the theme, and what is beside the picture is in it."""
    visitor = visit(scheme=scheme)
    visitor.login("admin", PASSWORD)
    page = visitor.page
    for i, (address, name, title, key) in enumerate(SAVED):
        page.goto(address)
        page.get_by_role("button", name=f"save {name} as SVG", exact=True).wait_for()
        text = saved(page, f"save {name} as SVG")
        (pictures() / f"saved-{i}-{scheme}.svg").write_text(text)
        drawing = ElementTree.fromstring(text)
        texts = ["".join(each.itertext()) for each in drawing.iter(f"{SVG}text")]
        assert texts[0] == title
        assert any(each.startswith(key) for each in texts), f"{name}: {key} is not in {texts}"
        assert not re.search(r"var\(|class=|style=|rgba\(|hsl\(|https?://(?!www\.w3\.org)", text), name
        paper = drawing[0].attrib["fill"]
        inks = [each.attrib["fill"] for each in drawing.iter(f"{SVG}text")]
        assert (brightness(paper) > 0.5) is (scheme == "light")
        # what has a colour of its own behind it may be pale: the cells of a heat map
        assert sum(abs(brightness(ink) - brightness(paper)) > 0.3 for ink in inks) > len(inks) / 2, name
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"save {name} as PNG", exact=True).click()
        assert waiting.value.suggested_filename.endswith(".png")
        png = waiting.value.path().read_bytes()
        (pictures() / f"saved-{i}-{scheme}.png").write_bytes(png)
        assert png.startswith(b"\x89PNG")
        width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
        assert (width, height) == tuple(round(2 * float(size)) for size in drawing.attrib["viewBox"].split()[2:])
        rows = list(csv.DictReader(io.StringIO(saved(page, f"save {name} as CSV"))))
        assert rows, name
        assert all(None not in row for row in rows), name
    visitor.saw_no_problem(but=("Failed to load resource",))


def test_rungs_are_saved_with_who_stands_where(admin: Visitor, cluster: Embedded) -> None:
    page = admin.page
    page.goto("/det/experiments/1/search")
    rungs = page.locator(".rung .cells a")
    rungs.first.wait_for()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save rungs as CSV"))))
    assert len(rows) == rungs.count()
    assert [row["trial"] for row in rows] == [text.rstrip("↑") for text in rungs.all_inner_texts()]
    assert {"stopped", "finished"} < {row["outcome"] for row in rows}
    texts = texts_of(saved(page, "save rungs as SVG"))
    assert all(text in texts for text in rungs.all_inner_texts())


def test_all_trials_of_long_rungs_are_shown_when_asked_for(admin: Visitor) -> None:
    """At first the best 100 of each rung: here the best two, as the search is a small one."""
    page = admin.page
    page.route(
        re.compile("/search.*trials=100$"),
        lambda route: route.continue_(url=route.request.url.replace("trials=100", "trials=2")),
    )
    page.goto("/det/experiments/1/search")
    rungs = page.locator(".rung .cells a")
    cut = page.get_by_text(re.compile(r"\d+ results, the best 2$"))
    expect(cut.first).to_be_visible()
    best = rungs.all_inner_texts()
    rows = list(csv.DictReader(io.StringIO(saved(page, "save rungs as CSV"))))
    assert [row["trial"] for row in rows] == [text.rstrip("↑") for text in best]
    assert any(text and text.endswith(", the best 2") for text in texts_of(saved(page, "save rungs as SVG")))
    page.get_by_role("button", name="Show all trials of each rung").click()
    expect(cut).to_have_count(0)
    expect(page.get_by_role("button", name="Show all trials of each rung")).to_have_count(0)
    assert rungs.count() > len(best)
    assert page.locator(".rung").first.locator(".cells a").all_inner_texts()[:2] == best[:2]


def texts_of(drawing: str) -> list[str | None]:
    return [each.text for each in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def plotted(page: Page, **changes: Any) -> tuple[str, Any]:
    """What is drawn of a line chart, and its legend."""
    plot = {
        "title": "loss", "xLabel": "steps", "data": [[0, 5, 10], [1, 2, 4], [3, 3, 3]],
        "series": [{"label": "a", "colour": "#ff0000", "width": 1}, {"label": "b", "colour": "#0000ff", "width": 2, "dash": [6, 4]}],
        "x": {"from": 0, "to": 10, "marks": [[0, "0"], [10, "10"]]}, "y": {"from": 1, "to": 4, "marks": [[1, "1"], [4, "4"]]},
    }  # fmt: skip
    found = calls(page, "plot.js", f"m.plotted({json.dumps(plot | changes)})")
    return found["body"], found["keys"]


def test_saved_curves_have_what_the_screen_shows(admin: Visitor) -> None:
    page = on_any_page(admin)
    plain, keys = plotted(page)
    assert plain.count("<polyline") == 2
    assert 'stroke-dasharray="6 4"' in plain
    assert [key["label"] for key in keys] == ["a", "b"]
    banded, keys = plotted(page, bands=[[-5, 2, "shaded: late"], [4, 6, "shaded: late"], [20, 30, "elsewhere"]])
    assert banded.count("<rect") - plain.count("<rect") == 2, "what lies outside of the range is not drawn"
    assert [key["label"] for key in keys] == ["a", "b", "shaded: late", "elsewhere"]
    edges = [{"label": word, "colour": "#ff0000", "width": 0} for word in ("least", "most")]
    group = [{"label": "a", "colour": "#ff0000"}, *edges]
    rows = [[0, 5, 10], [2, 2, 2], [1, 1, 1], [3, 3, 4]]
    filled, keys = plotted(page, series=group, data=rows, fills=[[2, 1, "hsl(0 50% 50% / 0.2)"]])
    assert 'fill-opacity="0.2"' in filled
    assert (filled.count("<polygon"), filled.count("<polyline")) == (1, 1)
    assert [(key["label"], key["shape"]) for key in keys] == [("a", "band")]
    gap, _ = plotted(page, data=[[0, 3, 5, 10], [1, None, 2, 4], [3, 3, 3, 3]])
    assert gap.count("<polyline") == 3
    log, _ = plotted(
        page, data=[[0, 5, 10], [0, 10, 100], [1, 1, 1]], y={"from": 1, "to": 100, "marks": [], "log": True}
    )
    first = re.search(r'<polyline points="([^"]*)"', log)
    assert first is not None
    assert len(first[1].split()) == 2, "there is no zero on this scale"
    many = [{"label": f"t{i}", "colour": "#123456", "width": 2.5 if i == 3 else 1.3} for i in range(40)]
    _, keys = plotted(page, series=many, data=[[0, 10], *([[1, 2]] * 40)])
    assert [key["label"] for key in keys] == ["t3"], "of many curves the thick one has a name"


def test_a_hostile_name_stays_a_text_in_what_is_saved(admin: Visitor) -> None:
    page = on_any_page(admin)
    bad = "<script>alert(1)</script>\"'&"
    text = calls(
        page, "svg.js", f"m.framed({{body: '', width: 300, height: 10, title: {bad!r}, about: {bad!r}, keys: [{{label: {bad!r}, fill: 'var(--run)'}}]}})"
    )  # fmt: skip
    drawing = ElementTree.fromstring(text)
    assert [each.text for each in drawing.iter(f"{SVG}text")] == [bad] * 3
