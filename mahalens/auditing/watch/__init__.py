"""Running a model and seeing what its layers are, without leaving a trace."""
