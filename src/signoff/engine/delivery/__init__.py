"""Handing rows to sinks: the pass on the executors, receipts, the order of keys, sinks as the driver
holds them.
"""
