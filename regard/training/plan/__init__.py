"""The plan: every setting of a run, chosen from the data, the machine and the time."""
