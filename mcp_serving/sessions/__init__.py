"""Sessions of clients up to protocol 2025-11-25."""
