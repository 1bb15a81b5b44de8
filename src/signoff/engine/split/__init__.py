"""Cutting a graph where rows go through a log of their own: in front of windows, folds, buffers and
merges of several sources.
"""
