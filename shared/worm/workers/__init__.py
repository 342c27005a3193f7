"""What a Lambda handler calls: batches of hints in, partial-batch answers out."""
