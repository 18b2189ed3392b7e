// The TypeScript SDK's client, v1 and v2, which differ in few words. What every client here does, and how they say
// it, is in real_clients.py.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const spec = JSON.parse(process.argv[2]);
// This file stands outside of the folder with node_modules, from which Node would have to look for packages.
const { resolve } = createRequire(new URL('../npm/', import.meta.url));
const load = name => import(pathToFileURL(resolve(name)));

async function sdk() {
    const info = { name: 'typescript', version: '1' };
    const capabilities = { elicitation: {} };
    if (spec.mode === 'v1') {
        const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
        const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
        const { StdioClientTransport } = await load('@modelcontextprotocol/sdk/client/stdio.js');
        const { CallToolResultSchema, ElicitRequestSchema } = await load('@modelcontextprotocol/sdk/types.js');
        const v1 = new Client(info, { capabilities });
        return {
            client: v1,
            transports: { StreamableHTTPClientTransport, StdioClientTransport },
            elicitation: ElicitRequestSchema,
            call: (params, options) => v1.callTool(params, CallToolResultSchema, options)
        };
    }
    const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
    const { StdioClientTransport } = await load('@modelcontextprotocol/client/stdio');
    const v2 = new Client(info, { capabilities, versionNegotiation: { mode: spec.mode } });
    return {
        client: v2,
        transports: { StreamableHTTPClientTransport, StdioClientTransport },
        elicitation: 'elicitation/create',
        call: (params, options) => v2.callTool(params, options)
    };
}

const { client, transports, elicitation, call } = await sdk();
const { StreamableHTTPClientTransport, StdioClientTransport } = transports;
const tool = (name, args, options) => call({ name, arguments: args }, options);
const text = result => result.content.map(each => each.text).join('');
const saw = { questions: [], progress: [] };

client.setRequestHandler(elicitation, async ({ params }) => {
    saw.questions.push(params.message);
    return params.message.includes('7') ? { action: 'accept', content: {} } : { action: 'decline' };
});
const transport = spec.url ? new StreamableHTTPClientTransport(new URL(spec.url)) : new StdioClientTransport(spec.command);
// What v1 has negotiated, it tells its transport alone.
const tell = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = version => {
    saw.protocol = version;
    tell?.(version);
};
await client.connect(transport);
saw.tools = (await client.listTools()).tools.map(each => each.name).sort();
saw.add = (await tool('add', { a: 2, b: 3 })).structuredContent;
saw.count = text(await tool('count', { to: 3 }, { onprogress: ({ progress }) => saw.progress.push(progress) }));
for (const [name, number] of [['accepted', 7], ['declined', 8]]) {
    const result = await tool('delete_order', { label: spec.label, number });
    saw[name] = [result.isError ?? false, text(result)];
}
saw.resource = (await client.readResource({ uri: 'test://greeting' })).contents[0].text;
saw.prompt = (await client.getPrompt({ name: 'greet', arguments: { name: 'Ada' } })).messages[0].content.text;

const controller = new AbortController();
saw.cancelled = await tool('wait', { label: spec.label }, { signal: controller.signal, onprogress: () => controller.abort() })
    .then(() => false, () => controller.signal.aborted);

const cutMe = () => console.log(JSON.stringify('cut me'));
// At 2026-07-28, v2 does not notice that the stream has ended: only its timeout ends the call, by default of a minute.
saw.outlast = await tool('outlast', { label: spec.label }, { onprogress: cutMe, timeout: 5000 }).then(text, () => 'failed');
saw.after = (await tool('add', { a: 1, b: 1 })).structuredContent;
await client.close();
console.log(JSON.stringify(saw));
