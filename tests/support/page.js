// A client of MCP as a page has it: all that it knows is what the browser lets it send and read.

const BOTH = "application/json, text/event-stream";
const META = {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": { name: "page", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": {},
};

class Client {
  constructor(url, { headers = {}, credentials = "same-origin" } = {}) {
    this.url = url;
    this.headers = headers;
    this.credentials = credentials;
  }

  fetch(method, headers = {}, message = undefined) {
    return fetch(this.url, {
      method,
      headers: { ...this.headers, ...headers },
      body: message && JSON.stringify({ jsonrpc: "2.0", ...message }),
      credentials: this.credentials,
      signal: AbortSignal.timeout(15000),
    });
  }

  // Up to 2025-11-25

  post(message) {
    return this.fetch("POST", { "Content-Type": "application/json", Accept: BOTH }, message);
  }

  async open() {
    const params = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "page", version: "1" } };
    const opened = await this.post({ id: "initialize", method: "initialize", params });
    this.headers["Mcp-Session-Id"] = opened.headers.get("Mcp-Session-Id");
    this.headers["MCP-Protocol-Version"] = "2025-11-25";
    await opened.text();
    const ready = await this.post({ method: "notifications/initialized" });
    return [opened.status, ready.status];
  }

  call(name, args = {}) {
    return this.post({ id: name, method: "tools/call", params: { name, arguments: args, _meta: { progressToken: 1 } } });
  }

  // From 2026-07-28 on

  callModern(name, args = {}, { headers = {}, progressToken = undefined } = {}) {
    const routing = { "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name };
    const params = { name, arguments: args, _meta: { ...META, progressToken } };
    return this.fetch(
      "POST",
      { "Content-Type": "application/json", Accept: BOTH, ...routing, ...headers },
      { id: name, method: "tools/call", params },
    );
  }
}

// The events of a stream as they come: what the page reads is what has left the server.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (text + value).replaceAll("\r\n", "\n").split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split("\n")) {
        const [, name, content] = line.match(/^(\w*): ?(.*)$/);
        event[name] = content;
      }
      if (event.data) event.data = JSON.parse(event.data);
      yield event;
    }
  }
}

async function next(stream, wanted) {
  for (;;) {
    const { value, done } = await stream.next();
    if (done) throw new Error("the stream has ended");
    if (value.data && wanted(value.data)) return value;
  }
}

// What a page can tell of an answer.
async function told(answer) {
  try {
    const response = await answer;
    return { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() };
  } catch (error) {
    return error.name;
  }
}
