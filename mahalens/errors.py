"""Errors and warnings of the package, in one hierarchy.

Every message names what was given, what is wanted and what to do. The command line prints it as
one line and leaves with exit code 2; a caller of the library catches :class:`InputError`, which
is also a ``ValueError``.
"""

from importlib.util import find_spec

_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # where a module has another name
COMMAND_LINE = ("PIL", "click", "jinja2", "joblib", "matplotlib", "rich", "sklearn")
"""The modules that the command line needs besides those of the library: the extra ``cli``."""


class MahalensError(Exception):
    """Base of all errors this package raises on purpose."""


class InputError(MahalensError, ValueError):
    """A value, file or folder given by the caller cannot be used as it is."""


def require_extra(extra: str, purpose: str, *modules: str) -> None:
    """Raise :class:`InputError` unless the modules that an extra brings are installed.

    >>> require_extra("cli", "the command line", "tomorrow")
    Traceback (most recent call last):
    ...
    mahalens.errors.InputError: the command line needs tomorrow; pip install 'mahalens[cli]'
    """
    missing = [_PACKAGES.get(name, name) for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(f"{purpose} needs {', '.join(missing)}; pip install 'mahalens[{extra}]'")


class SingularCovarianceError(InputError):
    """A covariance has directions without spread, so distances along them are undefined."""


class RunFolderError(InputError):
    """A run folder is missing, taken, damaged, locked or cannot be written."""


class IllConditionedWarning(UserWarning):
    """The result is defined, but rounding leaves it few correct digits."""


class Interrupted(MahalensError):
    """Work was stopped by the user; what was done is saved and can be resumed."""


class ConditionMet(MahalensError):
    """Work is done, and its result meets a condition of ``--fail-on``."""
