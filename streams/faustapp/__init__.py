"""Faust fetches records and shares out partitions. What the records add up to is elsewhere."""
