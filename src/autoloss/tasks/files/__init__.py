"""The files of a data set: their layout, their faults, and their inspection."""
