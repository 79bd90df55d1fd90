"""Set-up of all tests; says at the end of a run if pages were not tried in a browser."""

import os

import pytest
from hypothesis import HealthCheck, settings

# No test asserts a time, not even of drawing its examples: machines are busy.
settings.register_profile("mahalens", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mahalens")

# Some virtual machines claim AMX and stop the process at its first instruction; oneDNN reads
# this before torch's first product in bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

BROWSER_TESTS = ("test_audit_browser.py", "test_site.py")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Say it below the short summary: as the outermost of all that write there."""
    result = yield
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if any(name in report.nodeid for name in BROWSER_TESTS)
    ]
    if skipped:
        reason = skipped[0].longrepr[2].removeprefix("Skipped: ")
        terminalreporter.write_line("")
        terminalreporter.write_sep("!", "BROWSER TESTS WERE SKIPPED", red=True, bold=True)
        terminalreporter.write_line(
            f"BROWSER TESTS WERE SKIPPED ({len(skipped)}): {reason}", red=True, bold=True
        )
        terminalreporter.write_line(
            "The pages of audits and of the site were NOT tried in a real browser. Set "
            "MAHALENS_BROWSER=required to make that a failure.",
            red=True,
        )
        terminalreporter.write_sep("!", red=True, bold=True)
    return result
