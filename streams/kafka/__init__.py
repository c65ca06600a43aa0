"""Kafka: the one home of aiokafka. What is pure about it is `records`."""
