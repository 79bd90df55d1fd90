"""The page, figures and tables of an audit: show what a record holds, and compute nothing.

===================  ==========================================================================
``folder``           an audit as a folder: :func:`write_audit`, :func:`load_audit_folder`, and
                     ``report.html``: :func:`mahalens.report.write_audit_report`
``payload``          the object that the page's script draws from, cut to what a browser takes
``tables``           the table of layers, on the page and in the terminal, and its words
``strips``           the figures for papers and slides
===================  ==========================================================================
"""
