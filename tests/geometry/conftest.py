import pytest
from geometry_cases import DTYPES, NAMES


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param
