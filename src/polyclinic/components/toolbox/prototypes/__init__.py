"""Class prototypes: clustering, global sets, and pixels compared with them without large tensors."""
