"""A fleet: the same question to many places, side by side; one receipt a lane, one signed statement over all."""
