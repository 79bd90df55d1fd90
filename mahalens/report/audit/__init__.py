"""The page of an audit: shows what a record holds, and computes nothing.

:func:`mahalens.report.write_audit_report` writes it. The parts: :mod:`.choice` decides which
units of large layers the page carries, :mod:`.units` and :mod:`.details` turn the readings into
short numbers, :mod:`.images` the samples into small pictures, :mod:`.payload` puts them into one
object that the page's script draws from, :mod:`.about` words what stands around it,
:mod:`.strips` and :mod:`.overview` draw the figures, :mod:`.page` writes the files.
"""
