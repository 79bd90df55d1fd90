"""The ellipsoid study (source 002): points from their distances to many ellipsoids."""
