"""The workers behind the Lambda handlers: batches of hints in, partial-batch answers out."""
