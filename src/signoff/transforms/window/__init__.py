"""`window`: aggregates by keys in windows of event time; what is computed in front of the state, and
from it.
"""
