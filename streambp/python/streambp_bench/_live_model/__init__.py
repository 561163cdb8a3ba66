"""A live model of transformers as the engine takes it: where its decoder is, tensors by name, what its modules hold, and what is refused."""
