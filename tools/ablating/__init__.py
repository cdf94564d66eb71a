"""Comparing networks by many small trainings: the runs, training them one by one, table and plot."""
