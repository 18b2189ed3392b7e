1 / 0  # noqa: B018
