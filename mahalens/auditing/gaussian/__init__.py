"""What one linear layer says about a Gaussian that is known."""
