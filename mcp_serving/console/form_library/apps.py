from importlib.util import find_spec
from pathlib import Path

from django.apps import AppConfig

_library = find_spec("django_native_jsonform")


class FormLibraryConfig(AppConfig):
    name = "mcp_serving.console.form_library"
    label = "mcp_console_form_library"
    if _library is not None and _library.origin is not None:  # mcp_console.E001 says so if it is not installed
        path = str(Path(_library.origin).parent)
