/** An MCP server over standard input and output whose tools do what servers should not. Plain, so that it starts fast. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";

let count = 0;
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const answer = (id, text) => send({ id, result: { content: [{ type: "text", text }] } });
/** Calls that end when they are told to. */
const obedient = new Set();

const TOOLS = {
  count: ({ id }) => answer(id, String(++count)),
  die: ({ arguments: { code } }) => process.exit(code),
  /** Never ends; with a child that has left the process group. */
  hang: ({ arguments: { child }, _meta }) => {
    // Does not end with its input, as servers should.
    setInterval(() => {}, 1_000);
    if (child) spawn("sleep", ["1000"], { detached: true, stdio: "ignore" }).unref();
    send({ method: "notifications/progress", params: { progressToken: _meta.progressToken, progress: 1 } });
  },
  /** Ends once the file is there. */
  wait: ({ id, arguments: { file } }) => {
    const look = () => (existsSync(file) ? answer(id, "waited") : setTimeout(look, 20));
    look();
  },
  obey: ({ id }) => obedient.add(id),
  flood: ({ id, arguments: { chars } }) => answer(id, "x".repeat(chars)),
  complain: ({ id, arguments: { lines } }) => {
    for (let line = 0; line < lines; line += 1)
      console.error(`complaint ${line} with ${process.env.API_KEY}`);
    answer(id, "done");
  },
};

const METHODS = {
  initialize: ({ id }) =>
    send({
      id,
      result: {
        protocolVersion: "2025-11-25",
        capabilities: { tools: {} },
        serverInfo: { name: "trouble", version: "1" },
      },
    }),
  "tools/list": ({ id }) =>
    send({
      id,
      result: { tools: Object.keys(TOOLS).map((name) => ({ name, inputSchema: { type: "object" } })) },
    }),
  "tools/call": ({ id, params }) => TOOLS[params.name]({ id, ...params }),
  "notifications/cancelled": ({ params: { requestId } }) => {
    if (obedient.delete(requestId)) send({ id: requestId, error: { code: -32000, message: "ended" } });
  },
};

process.stdout.write("a line that is no message\n");
createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  METHODS[message.method]?.(message);
});
