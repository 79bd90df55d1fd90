"""The transfer study: OffsetL2 heads against linear ones on tables and sequences (source 004)."""
