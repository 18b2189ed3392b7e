def pattern_of(size: int) -> bytes:
    """Bytes in which nothing can be lost or change places unnoticed."""
    return b"".join(b"%09d\n" % number for number in range(-(-size // 10)))[:size]
