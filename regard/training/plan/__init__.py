"""The plan: from the data, the machine and the time to every setting of a run."""
