"""A real browser for the tests of pages: how it is started, and what must hold for every page."""

import re
import shutil

import pytest

WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# The elements that hold text or pictures, and stick out of the window or of what holds them.
STICKING_OUT = """() => {
  const out = [];
  const width = document.documentElement.clientWidth;
  for (const element of document.querySelectorAll("body *:not(svg *):not(script):not(style)")) {
    const box = element.getBoundingClientRect();
    if (box.width && (box.left < -0.5 || box.right > width + 0.5)) out.push(element.tagName + " " + element.className);
    if (element.clientWidth && element.scrollWidth > element.clientWidth + 1) out.push("scrolls: " + element.tagName);
  }
  return out;
}"""


def launched():
    """Give a running Chromium, or skip the test where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here: install the package chromium to look at the page in a real browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="driving the browser needs playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


def new_tab(browser, width, **options):
    """Return a tab of this width, with lists that take what it complains of and what it requests."""
    tab = browser.new_page(viewport=dict(zip(("width", "height"), WIDTHS[width], strict=True)), **options)
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    return tab, complaints, requests


def is_bright(tab):
    """Return whether a page is dark ink on bright paper."""
    paper, ink = (tab.evaluate(f"getComputedStyle(document.body).{what}") for what in ("backgroundColor", "color"))
    return brightness(paper) > brightness(ink)


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3]))
