"""Look at the built site in Chromium: two widths, light and dark; pictures, and what sticks out of the window.

    make docs
    python docs/pictures/screens.py docs/_build/html screens

It needs playwright and Chromium. It ends with 1 if a page is wider than its window, cannot load a picture, or asks for
anything from elsewhere.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PAGES = (
    "index",
    "install",
    "tutorials/one-table",
    "tutorials/three-sites",
    "how-to/index",
    "how-to/command-line",
    "how-to/which-columns",
    "how-to/privacy-officer",
    "auto_gallery/index",
    "auto_gallery/plot_02_consensus_forms",
    "auto_gallery/plot_13_twelve_stations",
    "reference/api",
    "reference/api/dekrr.DeKRRRegressor",
    "reference/errors",
    "reference/commands",
    "explanation/algorithm",
    "explanation/privacy-evidence",
    "accuracy",
    "performance",
    "privacy",
    "reproduction",
    "serving",
    "settings",
    "notebooks/stations",
)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
WRONG = """() => {
  const wrong = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1) {
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
    for (const element of document.querySelectorAll("main *")) {
      const box = element.getBoundingClientRect();
      if (box.right > width + 1 && !element.closest("table, pre, .MathJax, mjx-container, .math"))
        wrong.push(element.tagName + "." + element.className);
    }
  }
  for (const image of document.images)
    if (image.complete && !image.naturalWidth) wrong.push("no picture: " + image.src);
  return wrong.slice(0, 6);
}"""


def main(site: Path, out: Path) -> int:
    """Write the pictures, print what is wrong, and return 1 if anything is."""
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    n_wrong = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width, (across, down) in WIDTHS.items():
            for scheme in ("light", "dark"):
                tab = browser.new_page(viewport={"width": across, "height": down}, color_scheme=scheme)
                asked: list[str] = []
                tab.on("request", lambda request, asked=asked: asked.append(request.url))
                for name in PAGES:
                    tab.goto((site / f"{name}.html").resolve().as_uri(), wait_until="load")
                    wrong = tab.evaluate(WRONG)
                    wrong += [f"asks for {url}" for url in asked if not url.startswith(("file:", "data:", "blob:"))]
                    asked.clear()
                    n_wrong += len(wrong)
                    for text in wrong:
                        print(f"{name}, {width}, {scheme}: {text}")
                    path = out / f"{name.replace('/', '-')}-{width}-{scheme}.png"
                    tab.screenshot(path=path, full_page=False)
                tab.close()
        tab = browser.new_page()
        tab.goto((site / "search.html").resolve().as_uri() + "?q=consensus")
        tab.wait_for_timeout(3000)
        n_found = tab.locator("#search-results li").count()
        print(f"the search for consensus finds {n_found} pages, with no network")
        n_wrong += not n_found
        browser.close()
    print(f"{len(PAGES) * 4} pictures in {out}; {n_wrong} things are wrong")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
