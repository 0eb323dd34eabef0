"""From teacher to student: losses, sequences, what is badly aligned between them, and the training loop."""
