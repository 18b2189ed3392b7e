"""The login page of the site."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, Resolver404, get_script_prefix, resolve, reverse


def login_url() -> str:
    """``LOGIN_URL``, or the admin's login page where there is no page at ``LOGIN_URL``."""
    url = resolve_url(settings.LOGIN_URL)
    if has_view(url):
        return url
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return url


def has_view(url: str) -> bool:
    """Whether there is a view at a URL of this site; a URL of another site counts as one."""
    parts = urlsplit(url)
    if parts.netloc:
        return True
    for path in (parts.path, "/" + parts.path.removeprefix(get_script_prefix())):
        try:
            resolve(path)
        except Resolver404:
            continue
        return True
    return False
