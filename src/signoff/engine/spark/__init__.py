"""Spark itself: the session, its Java, its Python daemon, clusters, checkpoints, failed tasks."""
