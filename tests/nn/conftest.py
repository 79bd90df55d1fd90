"""What the tests of all modules share."""

import pytest
from modules import DTYPES


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param
