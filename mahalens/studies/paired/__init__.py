"""Studies of many models on many data sets over paired trials: what they share."""
