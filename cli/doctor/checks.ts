/** What `tendon doctor` looks at. Each check says how it is and, unless all is well, what to do. */
import { execFile } from "node:child_process";
import { access, constants, stat } from "node:fs/promises";
import { promisify } from "node:util";
import { messageOf } from "../../kit/errors.ts";
import type { GetStatusResponse } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { Api } from "../connect.ts";
import { isLoopback } from "../connect.ts";
import { explainFailure } from "../explain.ts";
import { programFile } from "../program-files.ts";
import { askHealth } from "../start/health.ts";
import { modelSource } from "../start/welcome.ts";

export type Verdict = "ok" | "warn" | "fail";

export interface Check {
  readonly name: string;
  readonly verdict: Verdict;
  readonly detail: string;
  /** What to do about it. */
  readonly advice?: string | undefined;
}

const MIN_NODE = 20;
const STATUS_WITHIN = { deadlineMs: 5_000 };
const AGENT_DOCTOR_WITHIN_MS = 20_000;

export async function runChecks(api: Api): Promise<Check[]> {
  const server = await checkServer(api);
  const status = server.verdict === "fail" ? undefined : await readStatus(api);
  const failure = status instanceof Error ? status : undefined;
  const known = status instanceof Error ? undefined : status;
  return [
    checkNode(),
    await checkDataDir(api),
    server,
    ...(failure === undefined
      ? []
      : [fail("key", explainFailure(failure, api.target) ?? messageOf(failure))]),
    checkDatabase(known),
    checkModel(known),
    checkHands(known),
    await checkIsolation(known, api),
    checkProxy(known),
  ];
}

const ok = (name: string, detail: string): Check => ({ name, verdict: "ok", detail });
const warn = (name: string, detail: string, advice?: string): Check => ({
  name,
  verdict: "warn",
  detail,
  advice,
});
const fail = (name: string, detail: string, advice?: string): Check => ({
  name,
  verdict: "fail",
  detail,
  advice,
});
const notKnown = (name: string): Check => warn(name, "not known while the server does not answer");

function checkNode(): Check {
  const { node } = process.versions;
  if (Number(node.split(".")[0]) >= MIN_NODE) return ok("node", node);
  return fail("node", node, `install Node ${MIN_NODE} or newer`);
}

async function checkDataDir({ target }: Api): Promise<Check> {
  const { path } = target.dataDir;
  try {
    const { mode } = await stat(path);
    await access(path, constants.W_OK);
    if (process.platform !== "win32" && (mode & 0o077) !== 0) {
      return warn("data dir", `${path}: others may look into it`, `run: chmod 700 ${path}`);
    }
    return ok("data dir", path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ENOENT")
      return fail("data dir", `${path}: ${messageOf(error)}`, "name another with --data-dir");
    return warn(
      "data dir",
      `${path} is not there yet`,
      '"npm start" makes it; or name another with --data-dir',
    );
  }
}

async function checkServer({ target }: Api): Promise<Check> {
  const ready = await askHealth(target.url, "/readyz", target.caFile);
  if (ready === undefined) {
    const advice = isLoopback(target.url)
      ? 'start it with "npm start" (tendon start)'
      : "is the address right, and is it reachable from here? --url or TENDON_URL, and TENDON_CA_FILE for a private authority";
    return fail("server", `${target.url} does not answer`, advice);
  }
  if (!ready.ok) return fail("server", `${target.url}: ${ready.missing.join("; ")}`, "see the server's log");
  const healthy = await askHealth(target.url, "/healthz", target.caFile);
  if (healthy?.ok) return ok("server", `${target.url} can run sessions`);
  return warn(
    "server",
    `${target.url} takes calls, but runs no session: ${healthy?.missing.join("; ") ?? ""}`,
  );
}

function readStatus(api: Api): Promise<GetStatusResponse | Error> {
  return api.admin.getStatus({}, STATUS_WITHIN).catch((error: Error) => error);
}

function checkDatabase(status: GetStatusResponse | undefined): Check {
  if (status === undefined) return notKnown("database");
  return ok("database", status.database);
}

function checkModel(status: GetStatusResponse | undefined): Check {
  if (status === undefined) return notKnown("model");
  if (status.harnesses.length === 0) {
    return fail(
      "model",
      "no harness is connected",
      "start one: tendon harness (its key: tendon key create NAME --role harness)",
    );
  }
  const source = modelSource(status);
  if (!source.includes("demo")) return ok("model", `by ${source}`);
  return warn(
    "model",
    "a scripted demo, no model",
    "set ANTHROPIC_API_KEY (or ANTHROPIC_BASE_URL for a gateway) and start again",
  );
}

function checkHands(status: GetStatusResponse | undefined): Check {
  if (status === undefined) return notKnown("hands");
  const { handAgentsOnline: online } = status;
  if (online > 0)
    return ok("hands", online === 1 ? "1 hand agent is online" : `${online} hand agents are online`);
  return fail(
    "hands",
    "no hand agent is online",
    "start one: tendon hand-agent run (its token: tendon hand-agent join-token)",
  );
}

/** Without a server, what this machine could do. */
async function checkIsolation(status: GetStatusResponse | undefined, api: Api): Promise<Check> {
  const told = status?.isolation ?? [];
  const lines = told.length > 0 ? told : isLoopback(api.target.url) ? await localIsolation() : [];
  if (lines.length === 0) return notKnown("isolation");
  const isWeak = lines.some((line) => /\bnone\b|not isolated|cannot be made/i.test(line));
  if (!isWeak) return ok("isolation", lines.join("; "));
  return warn("isolation", lines.join("; "), "install bubblewrap, or allow user namespaces");
}

async function localIsolation(): Promise<string[]> {
  try {
    const file = programFile("hand-agent");
    const options = { timeout: AGENT_DOCTOR_WITHIN_MS, maxBuffer: 1024 * 1024 };
    // It ends with 1 when this machine can make no hands, and has said why all the same.
    const { stdout } = await promisify(execFile)(process.execPath, [file, "--doctor"], options).catch(
      (error: { stdout: string }) => error,
    );
    return isolationLines(JSON.parse(stdout));
  } catch {
    return [];
  }
}

function isolationLines(report: unknown): string[] {
  const drivers = (report as { drivers?: unknown }).drivers;
  if (!Array.isArray(drivers)) return [];
  return drivers.map(
    ({ name, available, detail }: { name?: unknown; available?: unknown; detail?: unknown }) =>
      `${name}: ${available === true ? "" : "hands cannot be made here: "}${detail} (this machine)`,
  );
}

function checkProxy(status: GetStatusResponse | undefined): Check {
  if (status === undefined) return notKnown("proxy");
  if (status.proxies.length > 0) return ok("proxy", status.proxies.map(({ url }) => url).join(", "));
  return warn("proxy", "no proxy is connected: credentials cannot be used", "start one: tendon mcp-proxy");
}
