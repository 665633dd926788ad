"""What is measured: metrics of a case, inference, and how cases become the numbers of a table."""
