"""What ``Server`` drives: the two transports, and the signals that end them."""
