"""What a run consists of, as plain data that can travel: spec, units, and the tables that a unit gives."""
