"""Weights in and out: files of several frameworks, arrays, and the network they go into."""
