"""What is kept of a stream of rows: sums, extremes and a random few; never the stream itself."""
