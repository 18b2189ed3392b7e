"""Where django-oauth-toolkit is made stricter, or accepts more clients."""
