"""Operations on batches: stacking rows, padding them, and removing the padding."""
