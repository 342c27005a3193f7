"""Sample data: a schema and realistic documents for it."""
