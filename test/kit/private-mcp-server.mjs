/** An MCP server over HTTP, or HTTPS with a certificate, for networks that tests make: `node … address port [cert key]`. */
import { readFileSync } from "node:fs";
import { createServer as createPlain } from "node:http";
import { createServer as createSecure } from "node:https";

const [address, port, cert, key] = process.argv.slice(2);

const RESULTS = {
  initialize: () => ({
    protocolVersion: "2025-11-25",
    capabilities: { tools: {} },
    serverInfo: { name: "private", version: "1" },
  }),
  "tools/list": () => ({
    tools: ["whoami", "hang"].map((name) => ({ name, inputSchema: { type: "object" } })),
  }),
  "tools/call": (_params, { headers, socket }) => {
    const text = `credential: ${headers.authorization === undefined ? "none" : "given"}, from ${socket.remoteAddress}`;
    return { content: [{ type: "text", text }] };
  },
};

function answer(request, response) {
  let body = "";
  request.setEncoding("utf8").on("data", (text) => {
    body += text;
  });
  request.on("end", () => {
    const { id, method, params } = body === "" ? {} : JSON.parse(body);
    if (params?.name === "hang") return; // says nothing, for ever
    if (RESULTS[method] === undefined) return void response.writeHead(id === undefined ? 202 : 404).end();
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id, result: RESULTS[method](params, request) }));
  });
}

const server =
  cert === undefined
    ? createPlain(answer)
    : createSecure({ cert: readFileSync(cert), key: readFileSync(key) }, answer);
server.listen(Number(port), address);
