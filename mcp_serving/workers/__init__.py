"""Sessions whose requests arrive at another worker process."""
