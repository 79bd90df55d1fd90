"""Units that repeat one another: mirrored, duplicate and parallel rows."""
