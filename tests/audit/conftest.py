import pytest
from records import example_record


@pytest.fixture(scope="session")
def record():
    """A rich record; tests leave it as it is."""
    return example_record()
