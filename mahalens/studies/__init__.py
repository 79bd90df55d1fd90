"""The studies that test the theory: configuration, run, published figures, claims. No torch."""
