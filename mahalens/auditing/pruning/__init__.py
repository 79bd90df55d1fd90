"""Removing units that a record shows to be spare, where no output changes."""
