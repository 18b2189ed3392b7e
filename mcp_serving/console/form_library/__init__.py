"""The templates and static files of django-native-jsonform, for ``INSTALLED_APPS``.

Django imports every package in ``INSTALLED_APPS`` when it starts. The import of ``django_native_jsonform`` takes more
than a second of CPU time: it imports jsonschema with a parser for each rule of RFC 3987. With
``"mcp_serving.console.form_library"`` in its place, only a process that shows a form imports it.
"""
