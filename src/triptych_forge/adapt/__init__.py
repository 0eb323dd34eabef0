"""Scene adapters (LoRA) of the decoder: training, merging, and export for switching while driving."""
