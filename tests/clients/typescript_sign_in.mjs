// The TypeScript SDK's client, v1 and v2, for a server with sign-in. What it prints and reads is in signing_in.py.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const { url, mode } = JSON.parse(process.argv[2]);
const { resolve } = createRequire(new URL('../npm/', import.meta.url));
const load = name => import(pathToFileURL(resolve(name)));
const say = message => console.log(JSON.stringify(message));
const words = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const info = { name: 'typescript', version: '1' };
const { Client, StreamableHTTPClientTransport } =
    mode === 'v1'
        ? {
              ...(await load('@modelcontextprotocol/sdk/client/index.js')),
              ...(await load('@modelcontextprotocol/sdk/client/streamableHttp.js'))
          }
        : await load('@modelcontextprotocol/client');

const callback = Promise.withResolvers();
const listener = createServer((request, response) => {
    response.end('You may close this page.');
    const { pathname, searchParams } = new URL(request.url, 'http://127.0.0.1');
    if (pathname === '/callback') callback.resolve(searchParams);
});
await new Promise(done => listener.listen(0, '127.0.0.1', done));

const redirectUrl = `http://127.0.0.1:${listener.address().port}/callback`;
const kept = {};
const authProvider = {
    redirectUrl,
    clientMetadata: {
        client_name: `TypeScript ${mode}`,
        redirect_uris: [redirectUrl],
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none'
    },
    clientInformation: () => kept.client,
    saveClientInformation: client => void (kept.client = client),
    tokens: () => kept.tokens,
    saveTokens: tokens => void (kept.tokens = tokens),
    codeVerifier: () => kept.verifier,
    saveCodeVerifier: verifier => void (kept.verifier = verifier),
    invalidateCredentials: scope => void (scope === 'tokens' || scope === 'all' ? delete kept.tokens : null),
    redirectToAuthorization: address => say({ open: String(address) })
};

async function connect() {
    const options = mode === 'v1' ? {} : { versionNegotiation: { mode } };
    const client = new Client(info, options);
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
    await client.connect(transport);
    return client;
}

const isUnauthorized = error => /unauthorized/i.test(`${error.name} ${error.message} ${error.cause ?? ''}`);
try {
    await connect();
    throw new Error('connected without signing in');
} catch (error) {
    if (!isUnauthorized(error)) throw error;
}
const answer = await callback.promise;
const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
await transport.finishAuth(mode === 'v1' ? answer.get('code') : answer);
const client = await connect();
do {
    const { content } = await client.callTool({ name: 'who', arguments: {} });
    say({ called: content[0].text });
} while (!(await words.next()).done);
