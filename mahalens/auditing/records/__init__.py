"""Records of audits as files, plain JSON, tables and differences."""
