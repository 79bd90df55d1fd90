import pytest
import torch
from small_runs import SMALL, make_run


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Runs that are compared bit by bit must be made with the same number of threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Give the small run of a study, made once: ``finished("gaussian")``."""
    runs = {}

    def of(study):
        if study not in runs:
            runs[study] = make_run(study, tmp_path_factory.mktemp(study) / "run")
        return runs[study]

    return of


@pytest.fixture(params=list(SMALL))
def study(request):
    """Every study, one after the other."""
    return request.param
