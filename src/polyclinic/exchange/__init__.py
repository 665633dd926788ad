"""What crosses a boundary: messages, what components declare, the checks of both, and the audit log."""
