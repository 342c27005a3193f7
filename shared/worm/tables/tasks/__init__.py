"""The work on a table by many processes: what one task does, and what all of them add up to."""
