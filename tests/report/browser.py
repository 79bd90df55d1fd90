"""A real browser for tests: Debian's chromium, without a window, through playwright."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing():
    """What is not there and how to get it, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the package playwright is missing; install it with: pip install playwright"
    if not program():
        return "no chromium was found; install it with: apt-get install chromium"
    return None


def program():
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def running_browser():
    """A browser, or a skip that conftest.py makes loud (a failure where it is required)."""
    lacking = missing()
    if lacking and os.environ.get("MAHALENS_BROWSER") == "required":
        pytest.fail(f"MAHALENS_BROWSER is required, but {lacking}")
    if lacking:
        pytest.skip(lacking)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program(), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()
