"""What a model is made of, found by watching it run: stages, blocks, attention, layout of tensors."""
