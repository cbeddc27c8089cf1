import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parseMcpServers, readMcpServers } from "./server-config.ts";

const textOf = (entry: object, name = "files") => JSON.stringify({ mcpServers: { [name]: entry } });

test("the form that other clients of MCP have is taken, with a working directory and a choice of tools besides", () => {
  const entry = { command: "npx", args: ["-y", "server"], env: { KEY: "v" }, cwd: "/srv", tools: ["read"] };
  expect(parseMcpServers(textOf(entry))).toEqual([{ name: "files", ...entry }]);
  expect(parseMcpServers(textOf({ command: "/usr/bin/server" }))).toEqual([
    { name: "files", command: "/usr/bin/server", args: [], env: {} },
  ]);
});

test.each([
  [textOf({ command: "./server" }), /mcpServers\.files\.command: must be an absolute path/],
  [textOf({ command: "" }), /command: must name a program/],
  [textOf({ command: "a" }, "Files"), /lower-case/],
  [textOf({ command: "a", args: "b" }), /args: must be a list of texts/],
  [textOf({ command: "a", env: { "A B": "c" } }), /"A B" is not an allowed name/],
  [textOf({ command: "a", env: { TENDON_URL: "c" } }), /"TENDON_URL" is not an allowed name/],
  [textOf({ command: "a", cwd: "srv" }), /cwd: must be an absolute path/],
  [textOf({ command: "a", shell: true }), /unknown shell; there are: command, args/],
  ['{"servers": {}}', /unknown servers; there are: mcpServers/],
  ["[]", /must be an object/],
  ['{"mcpServers": {"a": "canary', /^is not JSON$/],
])("%s is refused with the place", (text, message) => {
  expect(() => parseMcpServers(text)).toThrow(message);
});

test("a file that others may write is refused: they could run programs as the agent", () => {
  const dir = mkdtempSync(join(tmpdir(), "tendon-mcp-config-"));
  try {
    const path = join(dir, "mcp.json");
    writeFileSync(path, textOf({ command: "a" }), { mode: 0o600 });
    expect(readMcpServers(path)).toHaveLength(1);
    chmodSync(path, 0o666);
    expect(() => readMcpServers(path)).toThrow(/others may write it \(mode 666\); run: chmod go-w/);
    expect(() => readMcpServers(join(dir, "none"))).toThrow(/none: ENOENT/);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
