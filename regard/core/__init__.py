"""The building blocks of every model: attention, positions, blocks, recurrent layers, caches."""
