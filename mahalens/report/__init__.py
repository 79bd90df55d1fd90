"""Reports: records into figures, tables and one HTML page. Shows, computes nothing.

===========================  ================================================================
:func:`build_report`         draw the figures of a run folder and write its ``report.html``
:func:`write_audit_report`   the same for an audit
===========================  ================================================================

:mod:`.records` reads a folder, :mod:`.tables` makes its tables, for terminals, pages and documents,
:mod:`.plots` draws its figures, :mod:`.page` fills the template, and :mod:`.numbers` decides how a
number looks. None of them knows a study: everything particular is in its
:class:`~mahalens.studies.study.Study`.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
