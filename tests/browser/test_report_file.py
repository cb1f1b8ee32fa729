"""The report in a browser, from disk: it explores samples offline, holds hostile text, prints, passes axe."""

from __future__ import annotations

import pytest


@pytest.fixture
def offline(page):
    page.context.set_offline(True)
    return page


def test_it_opens_from_disk_and_explores_samples(offline, reports):
    page = offline
    page.goto((reports / "plain.html").as_uri())
    page.get_by_text("of 18 traces").wait_for()
    assert page.locator("article.question").count() == 3
    assert page.locator("figure img").evaluate_all("all => all.every(item => item.naturalWidth > 100)")
    name = page.locator("table.samples tbody a").first.inner_text()
    page.get_by_label("Search").fill(name)
    page.get_by_text("of 6 traces").wait_for()
    page.locator("table.samples tbody a").first.click()
    page.locator(".tokens").wait_for()
    page.locator("body").press("Home")
    assert page.locator(".panel .token:not([data-state=masked])").count() == 0
    link = page.evaluate("location.href")
    assert f"#sample={name}&" in link
    page.goto("about:blank")
    page.goto(link)
    page.locator(".tokens").wait_for()
    page.get_by_text("pass 0 of").wait_for()
    page.locator(".finding summary").first.click()
    page.get_by_text("Rule:").first.wait_for()


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_column_heads_explain_themselves(offline, reports, width):
    page = offline
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((reports / "plain.html").as_uri())
    page.locator("table.samples tbody tr").first.wait_for()
    meanings = page.locator("#explorer dl.terms dt").all_inner_texts()
    assert {"Var", "Mean log q", "Gap", "Passes", "EOS cascade", "Correct"} <= set(meanings)
    page.locator("#table-fixed-sequence thead a", has_text="Var(log q)").click()
    assert page.locator(":target dt").inner_text() == "Var"
    head = page.locator("#table-fixed-sequence thead th", has_text="Var(log q)")
    assert head.locator("small").inner_text() == "nats²"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_hostile_text_is_text(offline, reports):
    page = offline
    page.goto((reports / "evil.html").as_uri())
    page.locator("table.samples tbody a").first.click()
    page.locator(".tokens").wait_for()
    assert page.locator("script").count() == 2
    assert page.locator("img:not(.chart)").count() == 0
    text = page.locator("body").inner_text()
    assert "<script>alert(1)</script>" in text
    assert not {"\u202e", "\x00", "\x1b"} & set(text)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_axe_finds_nothing_serious(page, reports, axe, scheme, rules):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto((reports / "plain.html").as_uri())
    page.locator("table.samples tbody tr").first.wait_for()
    assert axe(page, *rules) == []


def test_paper_gets_everything_unfolded(page, reports):
    page.goto((reports / "plain.html").as_uri())
    page.locator("table.samples tbody tr").first.wait_for()
    page.pdf()
    assert page.locator("main details:not([open])").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 32, 38)", "dark ink on paper"
