import pytest
import torch
from train_problems import DTYPES

from mahalens.train.compiled import why_not


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The problems are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads():
    """Sets the number of threads; afterwards it is as it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=["torch", "compiled"])
def engine(request):
    """Both engines for chains, the compiled one where there is one."""
    if request.param == "compiled" and why_not():
        pytest.skip(f"no compiled engine here: {why_not()}")
    return request.param
