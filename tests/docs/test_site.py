"""The documentation site in a real browser: links, figures, phones, search, ten tasks."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
from browser import running_browser

pytestmark = pytest.mark.slow
pytest.importorskip("sphinx", reason="pip install 'mahalens[docs]'")

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "docs" / "_build"
SITE = BUILD / "html"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}

# What a new user wants to do, the links to click from the first page on, and words of the answer.
TASKS = {
    "find what sphericity means": (
        ["What an audit measures"],
        ["sphericity", "‖M / d̄ − I‖_F"],
    ),
    "set a reject threshold": (
        ["Know what it does not know", "Set the threshold"],
        ["detector.set_reject(0.01)", "share of known samples"],
    ),
    "add a study": (
        ["contributing", "A new study is one file"],
        ["mahalens/studies/NAME.py", "STUDY = Study("],
    ),
    "read audit.json": (["audit.json"], ["json.loads", "verdict_details"]),
    "cite": (["How to cite"], ["title: mahalens", "version: "]),
    "use a GPU": (["Start"], ["CUDA build of torch", "--device cuda"]),
    "continue a killed run": (["Start"], ["mahalens run --resume"]),
    "install the CPU build": (["Start"], ["Install the CPU build of torch first"]),
    "prune a network": (["Audit a network"], ["mahalens.prune("]),
    "audit in a training loop": (["Audit a network", "While a network trains"], ["Watch("]),
    "see how a claim is decided": (["studies", "How verdicts are decided"], ["undecided"]),
    "add a detector": (
        ["contributing", "A new detector is one class"],
        ["detection/base.py", "METHODS"],
    ),
    "complete commands with tab": (["command line"], ["_MAHALENS_COMPLETE=bash_source"]),
    "find all options of a study": (["command line"], ["mahalens run gaussian", "--dim"]),
    "start a network from data": (["starting weights"], ["initialise("]),
    "find who wrote the theory": (["theory"], ["Alan Oursland"]),
}


def newest_source() -> float:
    """Return when a file that the site is made of was last changed."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "docs", "mahalens", "*.md"]
    names = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    files = [ROOT / name for name in names.splitlines()]
    return max(file.stat().st_mtime for file in files if file.exists())


@pytest.fixture(scope="session")
def site() -> Path:
    """The site, built if there is none or if it is older than its sources."""
    BUILD.mkdir(exist_ok=True)
    with FileLock(BUILD / "lock"):
        if not (SITE / "objects.inv").exists() or newest_source() > made(SITE):
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
            command += ["-d", BUILD / "doctrees", ROOT / "docs", SITE]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            if done.returncode:
                (SITE / "objects.inv").unlink(missing_ok=True)  # the next run builds it again
                pytest.fail(done.stderr)
    return SITE


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests: a second one cannot be started beside it in a process."""
    with running_browser() as running:
        yield running


def made(site: Path) -> float:
    return (site / "objects.inv").stat().st_mtime


class Page(HTMLParser):
    """Links, images, scripts and anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id") or "")
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("img", "script", "iframe") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])


page_of = cache(Page)


def pages(site: Path) -> list[Path]:
    return sorted(file for file in site.rglob("*.html") if "_downloads" not in file.parts)


def test_every_link_leads_to_a_page_and_an_anchor(site):
    broken = []
    for file in pages(site):
        for link in page_of(file).links:
            target = urlparse(link)
            if target.scheme:
                continue
            path = (file.parent / unquote(target.path)).resolve() if target.path else file
            anchor = unquote(target.fragment) if path.suffix == ".html" else ""
            if not path.is_file() or (anchor and anchor not in page_of(path).anchors):
                broken.append((file.name, link))
    assert not broken
    assert len(pages(site)) > 40


def test_nothing_is_loaded_from_elsewhere(site):
    for file in pages(site):
        for source in page_of(file).loaded:
            assert not urlparse(source).netloc, f"{file.name} loads {source}"
            assert (file.parent / unquote(urlparse(source).path)).is_file(), (file.name, source)


def test_every_page_fits_a_phone_and_shows_its_figures(site, browser):
    wide, missing, errors = [], [], []
    page = browser.new_page(viewport=PHONE)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for file in pages(site):
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > PHONE["width"]:
            wide.append((file.relative_to(site).as_posix(), width))
        page.evaluate("document.querySelectorAll('img').forEach(i => i.loading = 'eager')")
        lacking = page.evaluate(
            "Promise.all([...document.images].map(i => i.decode().then(() => '', "
            "() => i.src))).then(list => list.filter(Boolean))"
        )
        missing += [(file.name, source) for source in lacking]
    assert not wide
    assert not missing
    assert not errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_ground_differ_in_light_and_dark(site, browser, scheme):
    page = browser.new_context(color_scheme=scheme).new_page()
    page.goto((site / "index.html").as_uri())
    style = "getComputedStyle(document.body)"
    text, ground = (
        [int(part) for part in page.evaluate(f"{style}.{name}.match(/\\d+/g)")[:3]]
        for name in ("color", "backgroundColor")
    )
    assert abs(sum(text) - sum(ground)) > 3 * 150
    assert (sum(ground) > sum(text)) == (scheme == "light")


def test_search_finds_a_class_without_a_network(site, browser):
    page = browser.new_context(offline=True).new_page()
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("DistanceHead")
    page.keyboard.press("Enter")
    # Results appear one by one.
    for target in ("reference/api/nn.html#mahalens.nn.DistanceHead", "guides/heads.html"):
        page.locator(f'#search-results li a[href*="{target}"]').first.wait_for()


@pytest.fixture(scope="module")
def desk(browser):
    return browser.new_page(viewport=DESK)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_answered_within_three_clicks(site, desk, task):
    links, words = TASKS[task]
    assert 1 <= len(links) <= 3
    desk.goto((site / "index.html").as_uri())
    for link in links:
        here = desk.get_by_role("article").get_by_role("link", name=link, exact=True)
        menu = desk.get_by_role("link", name=link, exact=True)
        (here if here.count() else menu).first.click()
    for word in words:  # on the page that the last click is still loading
        desk.locator("article").filter(has_text=word).first.wait_for()
        assert word in desk.locator("article").inner_text()


def test_the_ten_tasks_are_more_than_ten():
    assert len(TASKS) > 10
