/**
 * LFS of sandboxes: the batch and lock API at a repository with the session's credential, and the transfers that the host's
 * answers name, at whatever host they are. Those answers reach the sandbox without their URLs and headers, which are sealed
 * (`lfs-actions.ts`). Transfers stream both ways; API messages are held whole, and bounded.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from "node:http";
import { type Agent, request as httpsRequest } from "node:https";
import { pipeline } from "node:stream";
import type { Clock } from "../../kit/clock.ts";
import { answerTo } from "../../kit/network/answer.ts";
import type { Grant } from "../credentials/credentials.ts";
import { Scrubber } from "../egress/scrubber.ts";
import type { SandboxConnection } from "../tunnels/sandbox-connection.ts";
import { LFS_ACTION_PATH, type LfsRequest } from "./git-path.ts";
import type { LfsAction, LfsActions } from "./lfs-actions.ts";
import { ONLY_OWN, rulesOfSession } from "./push-rules.ts";
import { GitRefusal, refusalOfStatus } from "./refusal.ts";

export interface LfsDeps {
  readonly actions: LfsActions;
  readonly https: Agent;
  readonly clock: Clock;
}

export interface LfsExchange {
  readonly asked: LfsRequest;
  readonly connection: SandboxConnection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly grant: Grant | undefined;
}

export const LFS_TYPE = "application/vnd.git-lfs+json";
const MAX_REQUEST_BYTES = 1024 * 1024;
const MAX_ANSWER_BYTES = 4 * 1024 * 1024;
const MAX_OBJECTS = 1_000;
/** As long as hosts usually say; a longer word of theirs is cut to a day. */
const DEFAULT_LIFE_MS = 3_600_000;
const MAX_LIFE_MS = 24 * 3_600_000;
/** A URL of this length still goes through everything on the way. */
const MAX_ACTION_CHARS = 12_000;
const METHODS = { download: "GET", upload: "PUT", verify: "POST" } as const;
/** A program on the same machine as the relay. */
const RELAY = /^(127\.0\.0\.1|localhost|\[::1\]):\d{1,5}$/;
const TO_HOST = ["accept", "content-type", "content-length", "range", "user-agent"];
const TO_SANDBOX = ["content-type", "content-length", "content-range", "accept-ranges", "content-encoding"];
const REDIRECTS = new Set([301, 302, 303, 307, 308]);

/** Throws GitRefusal, and what the way out throws. */
export async function serveLfs(deps: LfsDeps, exchange: LfsExchange): Promise<void> {
  switch (exchange.asked.kind) {
    case "action":
      return transfer(deps, exchange);
    case "batch":
      return batch(deps, exchange);
    case "locks":
      return locks(deps, exchange);
  }
}

async function locks(deps: LfsDeps, exchange: LfsExchange): Promise<void> {
  const { text } = await callApi(deps, exchange, await bodyOf(exchange.request));
  if (!isObject(text)) throw new GitRefusal("bad_answer", "the host's answer is none of LFS");
  answer(exchange, text);
}

async function batch(deps: LfsDeps, exchange: LfsExchange): Promise<void> {
  const { asked, connection, request } = exchange;
  const relay = request.headers.host ?? "";
  if (!RELAY.test(relay)) throw new GitRefusal("bad_request", "this is not asked through the relay", "proxy");
  const body = await bodyOf(request);
  const isUpload = objectOf(body).operation === "upload";
  if (isUpload && rulesOfSession(asked.repositoryUrl, connection.repositories) === undefined) {
    throw new GitRefusal("forbidden", ONLY_OWN, "proxy");
  }
  const { text } = await callApi(deps, exchange, body);
  const { objects, transfer: way } = objectOf(text);
  const isBasic = way === undefined || way === "basic";
  if (!isBasic || !Array.isArray(objects) || objects.length > MAX_OBJECTS) {
    throw new GitRefusal("bad_answer", "the host's LFS answer is none that can be passed on");
  }
  const base = `http://${relay}${pathOf(request)}${LFS_ACTION_PATH}`;
  const sealed = await Promise.all(objects.map((each) => sealObject(deps, exchange, base, each)));
  answer(
    exchange,
    JSON.stringify({ transfer: "basic", objects: sealed, hash_algo: objectOf(text).hash_algo }),
  );
}

/** Of the object all but where it is. */
async function sealObject(
  deps: LfsDeps,
  exchange: LfsExchange,
  base: string,
  object: unknown,
): Promise<object> {
  const { oid, size, error, actions } = recordOf(object);
  const found = Object.entries(recordOf(actions)).flatMap(([name, action]) =>
    name in METHODS ? [[name as keyof typeof METHODS, recordOf(action)] as const] : [],
  );
  const sealed: Record<string, object> = {};
  for (const [name, action] of found) {
    const made = actionOf(deps, exchange, METHODS[name], action);
    const text = made === undefined ? "" : await deps.actions.seal(made);
    if (text === "" || text.length > MAX_ACTION_CHARS)
      return {
        oid,
        size,
        error: { code: 422, message: "Tendon: the host's answer names no https URL for it" },
      };
    sealed[name] = {
      href: base + text,
      expires_in: Math.floor((made!.expiresAtMs - deps.clock.nowMs()) / 1000),
    };
  }
  const error_ = error === undefined ? {} : { error };
  return { oid, size, authenticated: true, ...(found.length > 0 && { actions: sealed }), ...error_ };
}

function actionOf(
  { clock }: LfsDeps,
  { asked, connection }: LfsExchange,
  method: LfsAction["method"],
  { href, header, expires_in: seconds, expires_at: time }: Record<string, unknown>,
): LfsAction | undefined {
  if (typeof href !== "string" || !URL.canParse(href) || new URL(href).protocol !== "https:")
    return undefined;
  const headers = Object.fromEntries(
    Object.entries(recordOf(header)).flatMap(([name, value]) =>
      typeof value === "string" && isHeader(name, value) ? [[name.toLowerCase(), value]] : [],
    ),
  );
  const nowMs = clock.nowMs();
  const saidMs = typeof seconds === "number" ? seconds * 1000 : Date.parse(String(time)) - nowMs;
  const lifeMs = saidMs > 0 ? Math.min(saidMs, MAX_LIFE_MS) : DEFAULT_LIFE_MS;
  const { sessionId } = connection;
  const { repositoryUrl } = asked;
  return { sessionId, repositoryUrl, method, url: href, headers, expiresAtMs: nowMs + lifeMs };
}

/** Headers that belong to the connection are not the host's to set. */
function isHeader(name: string, value: string): boolean {
  const isOwn =
    /^(host|connection|content-length|transfer-encoding|upgrade|te|trailer|expect|proxy-.*)$/i.test(name);
  return !isOwn && /^[A-Za-z0-9-]{1,128}$/.test(name) && /^[\x20-\x7e]{0,8192}$/.test(value);
}

/** A call of the host's LFS API, answered with JSON. */
async function callApi(
  { https }: LfsDeps,
  { asked, request, grant, response }: LfsExchange,
  body: string,
): Promise<{ text: string }> {
  const { method = "" } = request;
  const headers = {
    accept: LFS_TYPE,
    "user-agent": request.headers["user-agent"] ?? "git-lfs",
    ...(method === "POST" && { "content-type": LFS_TYPE, "content-length": String(Buffer.byteLength(body)) }),
    ...grant?.headers,
  };
  const outgoing = httpsRequest(asked.url, { agent: https, method, headers });
  const coming = answerTo(outgoing);
  response.once("close", () => outgoing.destroy());
  outgoing.end(method === "POST" ? body : undefined);
  const came = await coming;
  const status = came.statusCode ?? 0;
  grant?.used(String(status));
  if (status < 200 || status > 299) {
    came.destroy();
    throw refusalOfStatus(status, asked.repositoryUrl, grant !== undefined);
  }
  return { text: await textOf(came, MAX_ANSWER_BYTES, "bad_answer") };
}

/** Of a host that repeats what it was sent the session's credential is taken out. */
function answer({ response, grant }: LfsExchange, text: string): void {
  const scrubber = new Scrubber(grant?.secrets ?? []);
  const bytes = Buffer.concat([scrubber.push(Buffer.from(text)), scrubber.end()]);
  response.writeHead(200, { "content-type": LFS_TYPE, "content-length": bytes.length });
  response.end(bytes);
}

/** Makes a transfer that an answer of the host named to this session. */
async function transfer(deps: LfsDeps, exchange: LfsExchange): Promise<void> {
  const { asked, connection, request, response, grant } = exchange;
  const action = await deps.actions.open(asked.url);
  const isMeant =
    action?.sessionId === connection.sessionId &&
    action.repositoryUrl === asked.repositoryUrl &&
    action.method === request.method;
  if (!isMeant)
    throw new GitRefusal("bad_request", "this is no transfer that was offered to the session", "proxy");
  if (action.expiresAtMs < deps.clock.nowMs())
    throw new GitRefusal("forbidden", "the host's offer of this transfer has run out; ask again", "proxy");
  // At the repository's own host the credential counts where the answer names none, as it does for git-lfs itself.
  const isHome = new URL(action.url).origin === new URL(asked.repositoryUrl).origin;
  const own = isHome && action.headers.authorization === undefined ? grant : undefined;
  const came = await send(deps, exchange, action, own?.headers);
  const status = came.statusCode ?? 0;
  own?.used(String(status));
  if (REDIRECTS.has(status) && action.method === "GET")
    return redirect(deps, exchange, action, came.headers.location);
  if (status < 200 || status > 299) {
    came.destroy();
    if (status === 404) throw new GitRefusal("not_found", `${new URL(action.url).host} has no such object`);
    throw refusalOfStatus(status, action.url, grant !== undefined);
  }
  response.writeHead(status, only(came.headers, TO_SANDBOX));
  pipeline(came, response, () => {});
}

function send(
  { https }: LfsDeps,
  { request, response }: LfsExchange,
  { method, url, headers }: LfsAction,
  credential: Grant["headers"] = {},
): Promise<IncomingMessage> {
  const outgoing = httpsRequest(url, {
    agent: https,
    method,
    headers: { ...only(request.headers, TO_HOST), ...headers, ...credential },
  });
  const answer = answerTo(outgoing);
  response.once("close", () => outgoing.destroy());
  if (method === "GET") outgoing.end();
  else request.pipe(outgoing);
  return answer;
}

/** Told to the sandbox as another transfer, with none of this one's headers. */
async function redirect(
  { actions }: LfsDeps,
  { response, request }: LfsExchange,
  action: LfsAction,
  location = "",
): Promise<void> {
  const to = URL.canParse(location, action.url) ? new URL(location, action.url) : undefined;
  const sealed =
    to?.protocol === "https:" ? await actions.seal({ ...action, url: to.href, headers: {} }) : undefined;
  if (sealed === undefined || sealed.length > MAX_ACTION_CHARS)
    throw new GitRefusal("redirect_refused", "the transfer is redirected to where it cannot go");
  response.writeHead(302, { location: `${pathOf(request)}${LFS_ACTION_PATH}${sealed}` }).end();
}

/** Of the repository, as the sandbox asks for it. */
function pathOf({ url = "" }: IncomingMessage): string {
  return url.slice(0, url.indexOf("/info/lfs/"));
}

function bodyOf(request: IncomingMessage): Promise<string> {
  return request.method === "POST" ? textOf(request, MAX_REQUEST_BYTES, "bad_request") : Promise.resolve("");
}

async function textOf(
  stream: IncomingMessage,
  most: number,
  reason: "bad_answer" | "bad_request",
): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > most) throw new GitRefusal(reason, `more than ${most} bytes of an LFS message`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function objectOf(text: string): Record<string, unknown> {
  try {
    return recordOf(JSON.parse(text));
  } catch {
    throw new GitRefusal("bad_answer", "an LFS message is not JSON");
  }
}

function isObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null;
  } catch {
    return false;
  }
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {};
}

function only(headers: IncomingHttpHeaders, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = headers[name];
      return typeof value === "string" ? [[name, value]] : [];
    }),
  );
}
