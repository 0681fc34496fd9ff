"""What base and SFT training share: the row order, the loader, checkpoints and the loop."""
