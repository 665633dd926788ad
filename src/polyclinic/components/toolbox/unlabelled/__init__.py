"""What components that learn from unlabelled images share: masked losses, teachers, operations, boxes."""
