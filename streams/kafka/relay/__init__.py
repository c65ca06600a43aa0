"""The relay: takes the spools of one data directory to Kafka, in place of the embedded runner."""
