"""Source `rabbitmq`: queues whose messages are acknowledged when their events are settled."""
