"""Everything at once over machines: gateways, relays, writers and workers on one Kafka and one
Postgres, killed, stopped and started again; the books are held against what clients saw."""
