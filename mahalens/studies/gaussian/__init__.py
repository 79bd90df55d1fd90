"""The Gaussian study (source 000): networks trained to output the Mahalanobis distance."""
