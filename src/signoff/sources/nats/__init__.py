"""The source `nats`: a consumer of a JetStream stream."""
