"""Whether starting weights that are computed from data train faster or better (source 001)."""
