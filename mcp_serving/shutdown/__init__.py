"""The parts of a graceful shutdown."""
