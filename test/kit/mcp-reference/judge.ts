/** The official conformance suite, run against a server at an address: what each of its scenarios says. */
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export type Wire = "2025-11-25" | "2026-07-28";

/** By scenario: `<check> <status>`, and why it failed, in the order in which they were looked at, without what only informs. */
export type Verdicts = Record<string, string[]>;

const SUITE = fileURLToPath(
  new URL("../../../node_modules/@modelcontextprotocol/conformance/dist/index.js", import.meta.url),
);
const PRELOAD = new URL("judge-preload.mjs", import.meta.url).href;
const OUTPUT = /^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$/;

interface Check {
  readonly id: string;
  readonly status: string;
  readonly errorMessage?: string;
}

/** Rejects when the suite says nothing. */
export async function judge(url: string, wire: Wire, scenario?: string): Promise<Verdicts> {
  const place = mkdtempSync(join(tmpdir(), "mcp-judge-"));
  const which =
    scenario === undefined ? ["--requirements", wire] : ["--spec-version", wire, "--scenario", scenario];
  const args = [
    "--import",
    PRELOAD,
    SUITE,
    "server",
    "--url",
    url,
    "--timeout",
    "120000",
    "-o",
    place,
    ...which,
  ];
  try {
    const words = await output(args);
    const verdicts: Verdicts = {};
    for (const directory of readdirSync(place)) {
      const name = OUTPUT.exec(directory)?.[1] ?? directory;
      const checks: Check[] = JSON.parse(readFileSync(join(place, directory, "checks.json"), "utf8"));
      const counted = checks.filter(({ status }) => status !== "INFO");
      verdicts[name] = counted.map(({ id, status, errorMessage }) =>
        ["FAILURE", "WARNING"].includes(status) ? `${id} ${status}: ${errorMessage}` : `${id} ${status}`,
      );
    }
    if (Object.keys(verdicts).length === 0)
      throw new Error(`the suite judged nothing: ${words.slice(-2_000)}`);
    return verdicts;
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
}

function output(args: readonly string[]): Promise<string> {
  const child = spawn(process.execPath, args, {
    stdio: ["ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH },
  });
  const parts: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (part: Buffer) => parts.push(part));
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", () => resolve(Buffer.concat(parts).toString()));
  });
}
