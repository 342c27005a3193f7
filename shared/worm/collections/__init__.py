"""Documents, their oplog, and `reconcile`: brings the recorded history in line with the bucket."""
