"""Errors and warnings of the package, in one hierarchy.

Every message names what was given, what is wanted and what to do. The command line prints it as
one line and leaves with exit code 2; a caller of the library catches :class:`InputError`, which
is also a ``ValueError``.
"""


class MahalensError(Exception):
    """Base of all errors this package raises on purpose."""


class InputError(MahalensError, ValueError):
    """A value, file or folder given by the caller cannot be used as it is."""


class SingularCovarianceError(InputError):
    """A covariance has directions without spread, so distances along them are undefined."""


class RunFolderError(InputError):
    """A run folder is missing, taken, damaged, locked or cannot be written."""


class IllConditionedWarning(UserWarning):
    """The result is defined, but rounding leaves it few correct digits."""


class Interrupted(MahalensError):
    """Work was stopped by the user; what was done is saved and can be resumed."""
