// The host of an MCP App: a frame without an origin, which asks for what it wants by JSON-RPC in messages.
"use strict";

{
  const form = document.getElementById("call");
  const PROTOCOL = "2026-01-26";
  let frame = null;
  let outcome = null;
  let given = {};

  const send = (message) => frame?.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*"); // its origin is opaque

  async function ask(method, params) {
    const data = new FormData();
    data.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    data.set("method", method);
    data.set("params", JSON.stringify(params ?? {}));
    const answer = await fetch(frame.dataset.requests, { method: "POST", body: data });
    return answer.json();
  }

  const requests = {
    "ui/initialize": () => ({
      result: {
        protocolVersion: PROTOCOL,
        hostInfo: { name: "mcp-serving console", version: "1" },
        hostCapabilities: { serverTools: {}, serverResources: {}, logging: {} },
        hostContext: {
          theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
          displayMode: "inline",
          availableDisplayModes: ["inline"],
          locale: document.documentElement.lang,
          platform: "web",
        },
      },
    }),
    ping: () => ({ result: {} }),
    "tools/call": (params) => ask("tools/call", params),
    "resources/read": (params) => ask("resources/read", params),
  };

  const notifications = {
    "ui/notifications/initialized": () => {
      send({ method: "ui/notifications/tool-input", params: { arguments: given } });
      send({ method: "ui/notifications/tool-result", params: outcome });
    },
    "ui/notifications/size-changed": ({ height } = {}) => {
      if (Number.isFinite(height)) frame.height = frame.style.height = `${Math.min(Math.max(height, 40), 1200)}px`;
    },
  };

  addEventListener("message", async (event) => {
    if (!frame || event.source !== frame.contentWindow || event.data?.jsonrpc !== "2.0") return;
    const { id, method, params } = event.data;
    if (id === undefined) {
      notifications[method]?.(params);
      return;
    }
    const unknown = { error: { code: -32601, message: `The console does not know ${method}` } };
    send({ id, ...((await requests[method]?.(params)) ?? unknown) });
  });

  document.addEventListener("mcp-result", (event) => {
    frame = document.querySelector("iframe[data-app]");
    outcome = event.detail;
    const request = document.querySelector("#panel-request code").textContent;
    given = JSON.parse(request).params.arguments ?? {};
  });
}
