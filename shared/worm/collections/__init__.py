"""Documents, their oplog, and `reconcile`: what makes the recorded history equal what the bucket holds."""
