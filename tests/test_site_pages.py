"""The site in a browser: on a phone and on a desk, by day and by night.

Chromium without a window, and its driver (Debian: apt-get install chromium chromium-driver).
"""

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from browser import CHROMIUM, DRIVER, Browser, By, Keys

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=(
    "no Chromium with its driver here: apt-get install chromium chromium-driver"))]

PAGES = {
    "landing": "index.html", "side by side": "side_by_side/fa2.html", "one loop": "side_by_side/fa3.html",
    "notebook": "notebooks/05_flash_attention_2.html", "page": "docs/semantics.html", "api": "api/fa_ref.ledger.html",
    "source": "cuda_kernels/fa2.py.html", "player": "players/fa2.html",
}

TOO_WIDE = """
return ["html", "body", ".main", ".content"].filter(name => {
  const node = document.querySelector(name);
  return node && (node.scrollWidth > node.clientWidth + 1 || node.getBoundingClientRect().right > innerWidth + 1);
});
"""

# Texts whose contrast with what is behind them is below 4.5, or 3 for large ones: WCAG 2, level AA.
FAINT = """
const parse = color => (color.match(/[\\d.]+/g) || []).map(Number);
const linear = x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
const light = color => color.slice(0, 3).map(x => linear(x / 255)).reduce(
  (sum, x, n) => sum + x * [0.2126, 0.7152, 0.0722][n], 0);
const over = (top, below) => top.slice(0, 3).map((x, n) => x * (top[3] ?? 1) + below[n] * (1 - (top[3] ?? 1)));
const behind = node => {
  const layers = [];
  for (; node; node = node.parentElement) layers.push(parse(getComputedStyle(node).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
};
const faint = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim().slice(0, 30);
  if (!text || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
  const style = getComputedStyle(node), below = behind(node), own = over(parse(style.color), below);
  const [a, b] = [light(own), light(below)].sort((x, y) => y - x), size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < (large ? 3 : 4.5)) faint.add(`${text}: ${ratio.toFixed(2)}, ${style.color}`);
}
return [...faint];
"""


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.driver.quit()


def visit(browser, path):
    browser.driver.get("about:blank")
    for log in ("browser", "performance"):
        browser.driver.get_log(log)
    browser.driver.get(path.as_uri())
    WebDriverWait(browser.driver, 20).until(lambda driver: driver.execute_script(
        "return document.readyState === 'complete' && location.href") == path.as_uri())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read(site, browser, name, width, dark):
    browser.look(width, 900, dark)
    visit(browser, site / PAGES[name])
    assert browser.run(TOO_WIDE) == []
    assert browser.run(FAINT) == []
    assert [entry["message"] for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "about:"))] == []
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper.strip("rgb()").split(","))) < 3 * 128) == dark


@pytest.mark.parametrize(("script", "planted", "found"), [
    (TOO_WIDE, "<div style='width: 2000px'>wide</div>", {"html", "body"}),
    (FAINT, "<p style='color: #999'>faint</p>", {"faint: 2.85, rgb(153, 153, 153)"}),
])
def test_a_planted_fault_is_noticed(browser, tmp_path, script, planted, found):
    browser.look(400)
    for text, wanted in (("<p>good</p>", set()), (planted, found)):
        (tmp_path / "page.html").write_text(f"<!doctype html><body style='background: white'>{text}", encoding="utf-8")
        visit(browser, tmp_path / "page.html")
        assert set(browser.run(script)) <= wanted and bool(browser.run(script)) == bool(wanted)


def test_two_columns_on_a_desk_one_on_a_phone(site, browser):
    for width, beside in ((1280, True), (400, False)):
        browser.look(width)
        visit(browser, site / PAGES["side by side"])
        left, right = browser.run("return [...document.querySelectorAll('#step-4 + .row > .highlight')].map("
                                  "cell => cell.getBoundingClientRect().toJSON())")
        assert (left["right"] <= right["left"]) if beside else (left["bottom"] <= right["top"])


def test_a_shape_is_in_sight_where_the_code_is_wider_than_its_column(site, browser):
    browser.look(400)
    visit(browser, site / PAGES["side by side"])
    hidden = browser.run("return [...document.querySelectorAll('.line .note')].filter(note => {"
                         "const [a, b] = [note, note.closest('pre')].map(x => x.getBoundingClientRect());"
                         "return a.right > b.right + 1 || a.left < b.left; }).map(note => note.textContent)")
    assert hidden == [] and browser.run("return document.querySelectorAll('.line .note').length") > 20


@pytest.mark.parametrize("name", ["fa1", "fa2", "fa3"])
def test_the_player_on_a_page_steps_by_keys(site, browser, name):
    browser.look()
    visit(browser, site / "side_by_side" / f"{name}.html")
    frame = browser.driver.find_element(By.CSS_SELECTOR, "iframe.player")
    browser.run("arguments[0].scrollIntoView({behavior: 'instant'})", frame)
    browser.driver.switch_to.frame(frame)
    try:
        browser.find("summary").click()
        browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_RIGHT)
        assert browser.step == 3
        browser.press(Keys.END)
        assert browser.step == int(browser.find("slider").get_attribute("max"))
    finally:
        browser.driver.switch_to.default_content()
