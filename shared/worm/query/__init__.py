"""Queries over tables: filters, sorting, the planner, execution, aggregates."""
