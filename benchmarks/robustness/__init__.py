"""What a kill, a power cut, a damaged file or a hostile input does to a run."""
