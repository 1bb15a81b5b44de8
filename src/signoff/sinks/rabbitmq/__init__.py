"""Sink `rabbitmq`: messages with publisher confirms."""
