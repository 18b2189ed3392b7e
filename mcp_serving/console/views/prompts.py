"""Prompts with their arguments and messages; and completion, for prompts and resource templates."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET
from mcp import MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from mcp_serving.console.access import console_view
from mcp_serving.console.pages import catalog_for, offered_or_404, page, viewer_of
from mcp_serving.console.rendering import contents, snippets
from mcp_serving.console.served import client_for, server
from mcp_serving.inspection.catalog import declaration_of


@require_GET
@console_view
async def prompt_list(request: HttpRequest) -> HttpResponse:
    catalog = await catalog_for(request, await viewer_of(request))
    return await page(request, "prompts.html", {"prompts": catalog.prompts}, section="prompts")


@require_GET
@console_view
async def prompt_detail(request: HttpRequest, name: str) -> HttpResponse:
    """The arguments of a prompt; with ``?show``, its messages too."""
    viewer = await viewer_of(request)
    prompt = await offered_or_404(request, viewer, "prompt", name)
    declared: Any = prompt.declared
    arguments = [(each, request.GET.get(f"argument-{each.name}", "")) for each in declared.arguments or ()]
    context: dict[str, Any] = {
        "prompt": prompt,
        "arguments": arguments,
        "declaration": declaration_of(server(), prompt),
    }
    if "show" in request.GET and viewer.viewed is None:
        given = {each.name: value for each, value in arguments if value}
        try:
            async with client_for(request, request.user) as client:
                result = await client.get_prompt(name, given)
        except MCPError as error:
            context |= {"error": error.error, "json": snippets.error_json(error.error)}
        else:
            messages = [
                (message.role, contents.part_of_block(message.content, f"result.messages.{number}.content"))
                for number, message in enumerate(result.messages)
            ]
            context |= {"messages_of_prompt": messages, "json": snippets.response_json(result)}
    return await page(request, "prompt.html", context, section="prompts")


@require_GET
@console_view
async def complete(request: HttpRequest) -> JsonResponse:
    """What the server suggests for an argument, as a list of texts."""
    viewer = await viewer_of(request)
    if viewer.viewed is not None:
        return JsonResponse({"values": []})
    reference: PromptReference | ResourceTemplateReference
    if "prompt" in request.GET:
        reference = PromptReference(name=request.GET["prompt"])
    else:
        reference = ResourceTemplateReference(uri=request.GET.get("uri", ""))
    argument = {"name": request.GET.get("argument", ""), "value": request.GET.get("value", "")}
    known = {key.removeprefix("known-"): str(value) for key, value in request.GET.items() if key.startswith("known-")}
    try:
        async with client_for(request, request.user) as client:
            result = await client.complete(reference, argument, known or None)
    except MCPError:  # a server without completion, or one that does not know the argument
        return JsonResponse({"values": []})
    return JsonResponse({"values": result.completion.values, "hasMore": bool(result.completion.has_more)})
