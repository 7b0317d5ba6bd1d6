"""What every model is made of: attention, positions, blocks, recurrent layers, caches."""
