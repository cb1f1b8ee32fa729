"""The viewer as a reader meets it: load, filter, replay, compare, links, keys, hostile text, axe."""

from __future__ import annotations

import re

import pytest


def rows(page):
    return page.locator("table.samples tbody tr")


def open_sample(page, address, **parts):
    """Open a link to a sample; returns its tokens."""
    link = "&".join(f"{name}={value}" for name, value in parts.items())
    page.goto(f"{address}#{link}")
    tokens = page.locator(".tokens").first.locator("[role=option]")
    tokens.first.wait_for()
    return tokens


def states(page):
    return (
        page.locator(".tokens")
        .first.locator("[role=option]")
        .evaluate_all("all => all.map(item => item.dataset.state)")
    )


def here(page):
    """Return the address as the page has it now; ``page.url`` changes later."""
    return page.evaluate("location.href")


def test_a_mark_on_the_plane_opens_its_sample(page, address):
    page.goto(address)
    rows(page).first.wait_for()
    page.get_by_label("Run", exact=True).select_option("plain")
    page.get_by_text("of 48 traces").wait_for()
    page.get_by_text("Every trace on the plane").click()
    marks = page.locator(".plane svg .yes:not(.strip), .plane svg .no:not(.strip)")
    marks.first.wait_for()
    assert page.locator(".plane .border").count() == 2
    page.get_by_label("Verdict").select_option("no")
    page.locator(".plane svg circle.yes").first.wait_for(state="detached")
    box = page.locator(".plane svg path.no").first.bounding_box()
    place = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*place)
    assert page.locator(".plane [role=status]").inner_text().endswith("incorrect")
    page.mouse.click(*place)
    page.locator(".tokens").first.wait_for()
    assert "wrong" in page.locator(".verdict").first.inner_text()


def test_the_list_loads_sorts_filters_and_opens_a_sample(page, address):
    page.goto(address)
    rows(page).first.wait_for()
    page.get_by_text(re.compile(r"^1–50 of 55 traces$")).wait_for()
    page.get_by_label("Run", exact=True).select_option("plain")
    page.get_by_text("of 48 traces").wait_for()
    names = rows(page).locator("th a").all_inner_texts()
    assert names == sorted(names), "not led by the order whose sum is not a likelihood"
    page.get_by_role("button", name="Var", exact=True).click()
    page.locator("th[aria-sort=descending]").wait_for()
    values = [float(text) for text in rows(page).locator("td:nth-child(3)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    page.get_by_label("Order", exact=True).select_option("max-prob+top=4")
    page.get_by_text("of 8 traces").wait_for()
    page.get_by_label("Verdict").select_option("yes")
    page.get_by_text("of 4 traces").wait_for()
    page.get_by_label("Numbers").fill("var > 1000")
    page.get_by_text("No trace fits").wait_for()
    page.get_by_label("Numbers").fill("var >")
    page.get_by_text("'var >' is not a condition").wait_for()
    page.get_by_label("Numbers").fill("mean < 0, n >= 1")
    page.get_by_text("of 4 traces").wait_for()
    page.get_by_role("button", name="Sample").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    assert rows(page).first.locator("a").inner_text() == "s0"
    page.get_by_label("Search").fill("nothing like this")
    page.get_by_text("No trace fits").wait_for()
    page.get_by_label("Search").fill("ASK")
    page.get_by_text("of 4 traces").wait_for()
    rows(page).first.locator("a").click()
    page.get_by_role("heading", name="s0").wait_for()
    assert page.locator("#trace-a option:checked").inner_text() == "max-prob+top=4, T = 0"
    page.get_by_role("button", name="← All samples").click()
    rows(page).first.wait_for()
    page.go_back()
    page.get_by_role("heading", name="s0").wait_for()


def test_replay_by_buttons_slider_keys_and_play(page, address):
    open_sample(page, address, sample="s1", run="plain", a="max-prob%2Btop%3D4", step=0)
    assert set(states(page)) == {"masked"}
    page.get_by_role("button", name="One pass forward").click()
    assert states(page).count("new") == 4
    page.locator("body").press("ArrowRight")
    assert (states(page).count("new"), states(page).count("earlier")) == (4, 4)
    page.locator("#pass").fill("5")
    assert states(page).count("masked") == 4
    page.locator("body").press("End")
    assert "masked" not in states(page)
    page.locator("body").press("Home")
    page.locator("body").press("Space")
    page.get_by_text("pass 6 of 6").wait_for()
    page.get_by_role("button", name="Play").wait_for()
    assert "masked" not in states(page)


def test_any_key_pauses_and_neighbours_keep_the_orders(page, address):
    open_sample(page, address, sample="s1", run="plain", a="forced-ar", b="random", step=0)
    page.get_by_role("button", name="Play").click()
    page.locator(".play[aria-pressed=true]").wait_for()
    page.keyboard.press("x")
    page.locator(".play[aria-pressed=false]").wait_for()
    page.get_by_role("button", name="Next →").click()
    page.get_by_role("heading", name="s2").wait_for()
    assert page.locator(".panel h3").all_inner_texts() == ["forced-ar", "random"]
    page.get_by_role("button", name="← Previous").click()
    page.get_by_role("heading", name="s1").wait_for()


def test_unknown_names_in_a_link_are_named(page, address):
    open_sample(page, address, sample="s1", run="plain", a="forced-ar", b="nobody")
    page.get_by_role("alert").get_by_text("This sample has no order 'nobody'").wait_for()
    page.goto(f"{address}#list&order=nothing")
    page.get_by_text("There is no order 'nothing'").wait_for()


def test_changes_of_a_policy_that_revises_are_shown(page, address):
    expected = {
        1: ["new", "masked", "masked", "masked"],
        2: ["earlier", "new", "new", "new"],
        3: ["earlier", "earlier", "earlier", "remasked"],
        4: ["earlier", "edited", "earlier", "masked"],
        5: ["earlier", "earlier", "earlier", "new"],
    }
    for step, wanted in expected.items():
        open_sample(page, address, sample="changed", run="revised", step=step)
        page.get_by_text(f"pass {step} of 5").wait_for()
        assert states(page) == wanted


def test_two_orders_share_the_pointer_and_their_first_difference(page, address):
    open_sample(page, address, sample="s2", run="plain", a="forced-ar", b="random")
    panels = page.locator(".panel")
    assert panels.count() == 2
    panels.nth(0).locator("[role=option]").nth(7).hover()
    marked = page.locator(".token.marked").evaluate_all("all => all.map(item => item.dataset.position)")
    assert marked == ["7", "7"]
    assert page.locator(".detail dl").count() == 2
    page.locator(".differing button").first.click()
    said = page.locator(".differing").inner_text()
    number = int(re.search(r"pass (\d+)", said)[1])
    assert f"step={number}" in here(page)
    page.get_by_label("Compare with").select_option(label="nothing")
    assert panels.count() == 1


def test_a_link_leads_to_sample_step_and_colour_and_follows_the_reader(page, address, browser):
    open_sample(page, address, sample="s3", run="plain", a="max-prob", step=9, colour="entropy")
    assert page.locator("input[name=colour]:checked").input_value() == "entropy"
    page.get_by_text("pass 9 of 24").wait_for()
    page.locator("body").press("ArrowRight")
    page.locator("body").press("c")
    link = here(page)
    assert "step=10" in link
    page.goto("about:blank")
    page.goto(link)
    page.get_by_text("pass 10 of 24").wait_for()
    assert page.locator("input[name=colour]:checked").input_value() == "confidence"


def test_a_lead_opens_two_orders_and_a_filtered_list_has_an_address(page, address, tmp_path):
    page.goto(f"{address}#list&run=plain&order=random&sort=mean&descending=false")
    page.get_by_text("of 8 traces").wait_for()
    assert page.get_by_label("Order", exact=True).input_value() == "random"
    page.locator("th[aria-sort=ascending]").get_by_text("Mean").wait_for()
    page.get_by_role("button", name="Largest gap between orders").click()
    page.locator(".panel").nth(1).wait_for()
    assert page.locator(".play").inner_text() == "Play", "a lead does not play by itself"
    assert page.title().endswith(" · OrderLens viewer")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save film").click()
    assert saved.value.path().read_text(encoding="utf-8").count('class="head"') == 2
    page.keyboard.press("Escape")
    page.get_by_text("of 8 traces").wait_for()
    assert page.title() == "OrderLens viewer"


def test_wide_screens_show_the_list_next_to_the_sample(page, address):
    page.set_viewport_size({"width": 1680, "height": 900})
    open_sample(page, address, sample="s3", run="plain", a="max-prob")
    marked = page.locator(".side-list [aria-current]")
    marked.first.wait_for()
    assert {text.split("\n")[0] for text in marked.all_inner_texts()} == {"s3"}
    there, tokens = page.locator(".side-list").bounding_box(), page.locator(".tokens").first.bounding_box()
    assert there["x"] + there["width"] <= tokens["x"]
    assert page.evaluate("document.documentElement.scrollWidth") == 1680
    page.locator(".side-list button", has_text="s1").first.click()
    page.get_by_role("heading", name="s1").wait_for()
    page.locator(".side-list [aria-current]", has_text="s1").first.wait_for()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not page.locator(".side-list").is_visible()


def test_column_heads_link_to_their_meaning(page, address):
    page.goto(address)
    rows(page).first.wait_for()
    page.get_by_role("link", name="What Var means").click()
    assert page.locator(":target dt").inner_text() == "Var"
    heads = page.locator("th .meaning").evaluate_all("all => all.map(item => item.getAttribute('href'))")
    assert len(heads) == 8
    assert all(page.locator(head).count() == 1 for head in heads)


def test_a_link_to_nowhere_says_so(page, address):
    page.goto(f"{address}#sample=missing&run=revised")
    page.get_by_role("alert").get_by_text("no sample 'missing'").wait_for()
    rows(page).first.wait_for()


def test_the_whole_way_by_keyboard(page, address):
    page.goto(address)
    rows(page).first.wait_for()
    page.get_by_label("Search").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('tbody a')"):
            break
    page.keyboard.press("Enter")
    page.locator(".tokens").wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role') === 'option'"):
            break
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    place = page.evaluate("document.activeElement.dataset.position")
    assert page.locator(".token.marked").first.get_attribute("data-position") == place
    assert "probability" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    assert page.locator(f".token[data-position='{place}']").get_attribute("data-state") == "new"
    page.keyboard.press("b")
    bottleneck = page.locator(".token.marked")
    assert bottleneck.get_attribute("data-low") == ""
    assert bottleneck.get_attribute("data-state") == "new"


def test_plots_answer_to_the_pointer(page, address):
    open_sample(page, address, sample="s1", run="plain", a="forced-ar")
    page.locator(".plot .hit").first.hover(position={"x": 300, "y": 40})
    assert page.locator(".token.marked").count() == 1
    page.locator(".worst").first.click()
    assert page.locator(".token.marked[data-state=new]").count() == 1
    page.get_by_role("radio", name="Position").check(force=True)
    assert "by position" in page.locator(".plot-box svg").get_attribute("aria-label")


def test_hostile_text_is_text(page, address):
    page.goto(address)
    page.get_by_label("Run", exact=True).select_option("evil")
    page.get_by_text("of 6 traces").wait_for()
    rows(page).first.locator("a").click()
    page.locator(".tokens").wait_for()
    assert page.locator("script").count() == 1
    assert page.locator(".wrap img, .wrap style").count() == 0
    text = page.locator("body").inner_text()
    assert "<script>alert(1)</script>" in text
    assert not {"\u202e", "\x00", "\x1b"} & set(text)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "long words do not widen it"
    )


@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_axe_finds_nothing_serious(page, address, axe, scheme, rules):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(address)
    page.get_by_label("Run", exact=True).select_option("revised")
    page.get_by_text("of 1 trace").wait_for()
    assert axe(page, *rules) == []
    open_sample(page, address, sample="s1", run="plain", a="forced-ar", b="random", step=9)
    assert axe(page, *rules) == []
