"""Distance heads against linear ones: accuracy, calibration, and knowing what is not known."""
