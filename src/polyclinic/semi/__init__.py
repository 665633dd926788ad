"""What components that learn from unlabelled images share: entropies, masked losses, teachers."""
