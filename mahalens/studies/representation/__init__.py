"""The representation study (source 003): networks held to distance or to intensity outputs."""
