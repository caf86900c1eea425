"""One interface an operation, its torch reference, and the layout of the bytes that it reads. No policy, no model."""
