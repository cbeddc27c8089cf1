/** What `tendon doctor` looks at. Each check says how it is and, unless all is well, what to do. */
import { access, constants, stat } from "node:fs/promises";
import { messageOf, REASONS, TendonError } from "../../kit/errors.ts";
import { connectionMessage, UNTRUSTED } from "../../kit/rpc/transport-failure.ts";
import type { GetStatusResponse } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { HandAgent } from "../../proto/gen/tendon/v1/hand_pb.js";
import { TENDON } from "../command-name.ts";
import { type Api, isLoopback, type Target } from "../connect.ts";
import {
  agentNamed,
  DEFAULT_AGENT_NAME,
  defaultEnvironment,
  MAKE_DEFAULT_AGENT,
  MAKE_DEFAULT_ENVIRONMENT,
} from "../default-agent.ts";
import { explainFailure } from "../explain.ts";
import { askHealth } from "../start/health.ts";
import { modelSource } from "../start/welcome.ts";
import { askLocalAgent, type LocalAgent } from "./local-agent.ts";

export type Verdict = "ok" | "warn" | "fail";

export interface Check {
  readonly name: string;
  readonly verdict: Verdict;
  readonly detail: string;
  /** What to do about it. */
  readonly advice?: string | undefined;
}

const MIN_NODE = 20;
const MOST_AGENTS = 100;
const STATUS_WITHIN = { deadlineMs: 5_000 };

export async function runChecks(api: Api): Promise<Check[]> {
  const server = await checkServer(api);
  const status = server.verdict === "fail" ? undefined : await readStatus(api);
  const failure = status instanceof Error ? status : undefined;
  const known: Known =
    status === undefined || status instanceof Error
      ? { status: undefined, why: unknownBecause(failure) }
      : { status, why: "" };
  const local = isLoopback(api.target.url) ? await askLocalAgent() : undefined;
  return [
    checkNode(),
    await checkDataDir(api),
    failure === undefined ? server : ofSomebodyElse(api, failure, server),
    ...(failure === undefined ? [] : [checkKey(api, failure)]),
    checkDatabase(known),
    checkModel(known, api),
    await checkHands(known, api),
    checkIsolation(known, local),
    ...(local === undefined ? [] : [checkLimitedNetwork(local)]),
    checkProxy(known),
    ...(await checkDefaults(known, api)),
  ];
}

interface Known {
  readonly status: GetStatusResponse | undefined;
  /** Why there is no status. */
  readonly why: string;
}

function unknownBecause(failure: Error | undefined): string {
  if (failure === undefined) return "not known while the server does not answer";
  return isKeyRefused(failure) ? "not known: the key was refused" : "not known: the server did not tell";
}

const isKeyRefused = (error: Error) =>
  error instanceof TendonError && [401, 403].includes(REASONS[error.reason].httpStatus);

function checkKey({ target }: Api, failure: Error): Check {
  return fail("key", explainFailure(failure, target) ?? messageOf(failure));
}

/** Nobody named the server and it does not know the key: it is not the one that this data directory is about. */
function ofSomebodyElse({ target }: Api, failure: Error, server: Check): Check {
  if (target.urlOrigin !== "default" || !isKeyRefused(failure)) return server;
  return fail("server", notOurs(target, "another installation"), START_OR_NAME);
}

const START_OR_NAME = `start this one with "npm start -- --port N" (${TENDON} start), or name the server with --url`;

function notOurs({ dataDir, url }: Target, what: string): string {
  return `nothing runs on ${dataDir.path}; ${what} answers at the default address ${url}`;
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
const notKnown = (name: string, { why }: Known): Check => warn(name, why);

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
  if (ready.who === "nobody") {
    const trust = connectionMessage(ready.failure ?? "");
    if (trust.startsWith(UNTRUSTED)) return fail("server", `${target.url}: ${trust}`);
    const advice = isLoopback(target.url)
      ? `start it with "npm start" (${TENDON} start)`
      : "is the address right, and is it reachable from here? --url or TENDON_URL, and TENDON_CA_FILE for a private authority";
    return fail("server", `${target.url} does not answer`, advice);
  }
  if (ready.who === "other") {
    if (target.urlOrigin === "default")
      return fail("server", notOurs(target, "something that is no Tendon server"), START_OR_NAME);
    return fail("server", `${target.url} answers, but not as a Tendon server does`, "is the address right?");
  }
  if (!ready.ok) return fail("server", `${target.url}: ${ready.missing.join("; ")}`, "see the server's log");
  const healthy = await askHealth(target.url, "/healthz", target.caFile);
  if (healthy.ok) return ok("server", `${target.url} can run sessions`);
  return warn("server", `${target.url} takes calls, but runs no session: ${healthy.missing.join("; ")}`);
}

function readStatus(api: Api): Promise<GetStatusResponse | Error> {
  return api.admin.getStatus({}, STATUS_WITHIN).catch((error: Error) => error);
}

function checkDatabase(known: Known): Check {
  const { status } = known;
  if (status === undefined) return notKnown("database", known);
  return ok("database", status.database);
}

function checkModel(known: Known, { target }: Api): Check {
  const { status } = known;
  if (status === undefined) return notKnown("model", known);
  if (status.harnesses.length === 0) {
    return fail(
      "model",
      "no harness is connected",
      `start one: ${TENDON} harness (its key: ${TENDON} key create NAME --role harness --out FILE)`,
    );
  }
  const source = modelSource(status);
  if (!source.includes("demo")) return ok("model", `by ${source}`);
  const key = "set ANTHROPIC_API_KEY (or ANTHROPIC_BASE_URL for a gateway)";
  const isHere = target.urlOrigin === "data directory";
  const advice = isHere ? `${key} and start again` : `${key} for the harness, where it runs, and restart it`;
  return warn("model", "a scripted demo, no model", advice);
}

async function checkHands(known: Known, api: Api): Promise<Check> {
  if (known.status === undefined) return notKnown("hands", known);
  const { handAgentsOnline: online } = known.status;
  if (online === 0) {
    return fail(
      "hands",
      "no hand agent is online",
      `start one: ${TENDON} hand-agent run --token-file FILE (its token: ${TENDON} hand-agent join-token --out FILE)`,
    );
  }
  const agents = online === 1 ? "1 hand agent is online" : `${online} hand agents are online`;
  const connected = await readAgents(api);
  if (connected.length === 0) return ok("hands", agents);
  const copied = connected.filter(({ duplicateSeenAt }) => duplicateSeenAt !== undefined).map(({ id }) => id);
  if (copied.length > 0)
    return warn(
      "hands",
      `${agents}; somebody runs a copy of ${copied.join(", ")}`,
      "two processes use one data directory's identity: stop one, and let it join with an empty directory of its own",
    );
  const sum = (of: (agent: HandAgent) => number) => connected.reduce((total, agent) => total + of(agent), 0);
  const places = { hands: sum(({ hands }) => hands), capacity: sum(({ capacityHands }) => capacityHands) };
  const used = `${places.hands} of ${places.capacity} hands in use`;
  if (places.hands < places.capacity) return ok("hands", `${agents}, ${used}`);
  return warn("hands", `${agents}, ${used}`, "archive sessions or raise TENDON_HAND_AGENT_CAPACITY");
}

/** Those that are online; none when not all of them can be asked for. */
async function readAgents(api: Api): Promise<HandAgent[]> {
  try {
    const page = await api.hands.listHandAgents({ pageSize: MOST_AGENTS }, STATUS_WITHIN);
    return page.nextPageToken === "" ? page.handAgents.filter((agent) => agent.online) : [];
  } catch {
    return [];
  }
}

const WEAK = /\bnone\b|not isolated|cannot be made/i;
/** No Docker engine says nothing of how well the hands that can be made are kept apart. */
const NO_ENGINE = /^docker: hands cannot be made/;

/** Without a server, what this machine could do. */
function checkIsolation(known: Known, local: LocalAgent | undefined): Check {
  const told = known.status?.isolation ?? [];
  const lines = told.length > 0 ? told : (local?.isolation ?? []);
  if (lines.length === 0) return notKnown("isolation", known);
  const isWeak = lines.some((line) => !NO_ENGINE.test(line) && WEAK.test(line));
  if (!isWeak) return ok("isolation", lines.join("; "));
  return warn("isolation", lines.join("; "), "install bubblewrap, or allow user namespaces");
}

/** Of this machine; those of other hand agents say it themselves, when they are asked with --doctor. */
function checkLimitedNetwork(local: LocalAgent): Check {
  const { noLimitedNetwork: reason } = local;
  if (reason === "") return ok("network", "hands made here can be limited to named hosts");
  const detail = `hands made here cannot be limited to named hosts: ${reason}`;
  return warn("network", detail, "see docs/networking.md, What it needs");
}

function checkProxy(known: Known): Check {
  const { status } = known;
  if (status === undefined) return notKnown("proxy", known);
  if (status.proxies.length > 0) return ok("proxy", status.proxies.map(({ url }) => url).join(", "));
  return warn("proxy", "no proxy is connected: credentials cannot be used", `start one: ${TENDON} mcp-proxy`);
}

/** What commands use that name no agent and no environment. */
async function checkDefaults({ status }: Known, api: Api): Promise<Check[]> {
  if (status === undefined) return [];
  try {
    const [agent, environment] = await Promise.all([
      agentNamed(api.agents, DEFAULT_AGENT_NAME),
      defaultEnvironment(api.environments),
    ]);
    const missing: Check[] = [];
    if (agent === undefined)
      missing.push(
        warn("agent", `there is no agent named "${DEFAULT_AGENT_NAME}"`, `make it: ${MAKE_DEFAULT_AGENT}`),
      );
    if (environment === undefined)
      missing.push(warn("env", "there is no default environment", `make one: ${MAKE_DEFAULT_ENVIRONMENT}`));
    return missing;
  } catch (error) {
    return [warn("agent", `not known: ${messageOf(error)}`)];
  }
}
