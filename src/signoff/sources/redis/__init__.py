"""Source `redis`: a stream, read by a consumer group and acknowledged when events are settled."""
