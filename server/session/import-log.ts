/** Makes a session from the lines of an exported log. Nobody sees anything of it until all lines are in. */
import { createHash } from "node:crypto";
import { create, fromJson, toJsonString } from "@bufbuild/protobuf";
import { createValidator } from "@bufbuild/protovalidate";
import type { ByteBudget } from "../../kit/byte-budget.ts";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField, isTendonError, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { type Line, LineReader } from "../../kit/log-file/line-reader.ts";
import {
  type LogEvent,
  type LogHeader,
  MAX_LINE_BYTES,
  parseHeader,
  parseLogLine,
} from "../../kit/log-file/log-lines.ts";
import { type Agent, AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { EventInputSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import {
  CreateSessionRequestSchema,
  type ImportSessionRequest,
  type ImportSessionStart,
  ImportSessionStartSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Principal } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { CopiedEvent, LogCopyStore } from "../store/log-copies.ts";
import { LogFold } from "../store/log-fold.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { ChangedSession, SessionStore } from "../store/sessions.ts";
import { ChainCheck } from "./chain-check.ts";
import { budgetText, type CreationDeps, checkTexts, findEnvironment } from "./creation.ts";
import { checkImported } from "./rules.ts";
import { checkVariables } from "./variable-check.ts";
import { checkVaults } from "./vault-check.ts";

const BATCH_EVENTS = 500;
const BATCH_BYTES = 4 * 1024 * 1024;

export interface ImportDeps extends CreationDeps {
  readonly logCopies: LogCopyStore;
  readonly sessions: Pick<SessionStore, "find">;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
}

export interface ImportCall {
  readonly requests: AsyncIterable<ImportSessionRequest>;
  readonly principal: Principal;
  readonly workspaceId: string;
  readonly budget: ByteBudget;
}

/** See ImportSession in the contract for what it fails with. */
export async function importLog(deps: ImportDeps, call: ImportCall): Promise<ChangedSession> {
  const requests = call.requests[Symbol.asyncIterator]();
  const first = (await requests.next()).value as ImportSessionRequest | undefined;
  if (first?.kind.case !== "start") throw invalidField("start", "must be the first message of the stream");
  const start = first.kind.value;
  checkTexts(start);
  const { workspaceId } = call;
  // What was imported already is read for its digest alone: what it named may be gone by now.
  const isRepeat = await deps.logCopies.wasImported(workspaceId, start.requestId);
  if (!isRepeat) await checkVaults(deps.vaults, start.vaultIds, workspaceId);
  const reader = new LineReader(call.budget, MAX_LINE_BYTES);
  const copy = new IncomingLog(call.principal, workspaceId, isRepeat ? undefined : deps.logCopies);
  try {
    for await (const line of reader.read(chunksOf(requests))) await copy.take(line);
    const { header, head, fold } = await copy.complete();
    const requestHash = createHash("sha256")
      .update(
        contentHash(ImportSessionStartSchema, create(ImportSessionStartSchema, { ...start, requestId: "" })),
      )
      .update(reader.sha256());
    const request = { requestId: start.requestId, contentHash: requestHash.digest() };
    const finish = async () =>
      deps.logCopies.finish({
        sessionId: copy.sessionId,
        workspaceId,
        ...(await describe(deps, header, start, workspaceId)),
        vaultIds: start.vaultIds,
        budget: budgetText(start.budget),
        archived: header.archived,
        head,
        fold,
        request,
      });
    const claim = { ...request, workspaceId, scope: SCOPES.import };
    return await madeOnce(deps.requestIds, claim, finish, async (id) => {
      const session = await deps.sessions.find(id);
      if (session !== undefined) await deps.logCopies.discard(copy.sessionId).catch(() => {});
      return session && { session, appended: undefined };
    });
  } catch (error) {
    // What cannot be erased now is erased later.
    await deps.logCopies.discard(copy.sessionId).catch(() => {});
    throw error;
  } finally {
    reader.close();
  }
}

async function* chunksOf(requests: AsyncIterator<ImportSessionRequest>): AsyncGenerator<Uint8Array> {
  for (let next = await requests.next(); !next.done; next = await requests.next()) {
    const { kind } = next.value;
    if (kind.case !== "chunk") throw invalidField("chunk", "after the first message come chunks only");
    yield kind.value;
  }
}

/** Takes lines in order and writes their events in batches. */
class IncomingLog {
  readonly sessionId = newId("session");
  private readonly principal: Principal;
  private readonly workspaceId: string;
  private readonly store: LogCopyStore | undefined;
  private readonly fold = new LogFold();
  private header: LogHeader | undefined;
  private isHashed = false;
  private check: ChainCheck | undefined;
  private head = 0;
  private ended = false;
  private batch: CopiedEvent[] = [];
  private batchBytes = 0;

  constructor(principal: Principal, workspaceId: string, store: LogCopyStore | undefined) {
    this.principal = principal;
    this.workspaceId = workspaceId;
    this.store = store;
  }

  async take(line: Line): Promise<void> {
    const path = `line ${line.number}`;
    try {
      if (this.ended) throw invalidField(path, "nothing may follow the last line of a log");
      if (this.header === undefined) {
        await this.begin(parseHeader(line.text, path));
        return;
      }
      const parsed = parseLogLine(line.text, path);
      if (parsed.kind === "event") this.add(parsed.event, path);
      else this.end(parsed, line, path);
    } catch (error) {
      throw withLine(error, line.number);
    }
    if (this.batch.length >= BATCH_EVENTS || this.batchBytes >= BATCH_BYTES || this.ended) await this.flush();
  }

  async complete(): Promise<{ header: LogHeader; head: number; fold: LogFold }> {
    if (!this.header || !this.ended) {
      const line = this.header ? this.head + 2 : 1;
      throw withLine(invalidField(`line ${line}`, "is missing: the log is cut off"), line);
    }
    return { header: this.header, head: this.head, fold: this.fold };
  }

  private async begin(header: LogHeader): Promise<void> {
    this.header = header;
    const { sessionId, head, chain } = header;
    if (chain) this.check = new ChainCheck(sessionId, chain);
    const origin = { kind: "import", sessionId, position: head, hash: chain?.hash ?? "" } as const;
    const { store, workspaceId } = this;
    if (store) this.isHashed = await store.begin({ sessionId: this.sessionId, workspaceId, origin });
  }

  private add(event: LogEvent, path: string): void {
    if (event.position !== this.head + 1) {
      throw invalidField(`${path}.position`, `must be ${this.head + 1}, is ${event.position}`);
    }
    const { id, type, threadId, payload, internal = "" } = event;
    const input = create(EventInputSchema, { id, type, threadId, payload, internal });
    let checked: ReturnType<typeof checkImported>;
    try {
      checked = checkImported(this.principal, input, path);
    } catch (error) {
      throw renamed(error, `${path}[0]`, path);
    }
    this.check?.add(event, path);
    this.head = event.position;
    const { answers } = this.fold.add(event);
    this.batch.push({ ...event, payload: checked.payload, internal: checked.internal, answers });
    this.batchBytes += payload.length + internal.length;
  }

  private end(end: { events: number; sha256: string }, line: Line, path: string): void {
    if (end.events !== this.head) {
      throw invalidField(`${path}.end.events`, `says ${end.events}, but there are ${this.head}`);
    }
    if (end.sha256 !== line.sha256Before()) {
      throw invalidField(
        `${path}.end.sha256`,
        "is not the digest of the lines before: the log was changed or damaged",
      );
    }
    this.check?.end();
    // What a chain begins with is kept for ever, so it has to be true.
    if ((this.isHashed || this.check) && this.header!.head !== this.head) {
      throw withLine(
        invalidField("line 1.session.head", `says ${this.header!.head}, but there are ${this.head} events`),
        1,
      );
    }
    this.ended = true;
  }

  private async flush(): Promise<void> {
    const events = this.batch;
    this.batch = [];
    this.batchBytes = 0;
    if (events.length === 0) return;
    const twice = await this.store?.add(this.sessionId, events);
    if (twice === undefined) return;
    // The first event stands in the second line.
    const line = twice + 1;
    throw withLine(
      invalidField(`line ${line}`, "an earlier event has the same id, or answers the same call"),
      line,
    );
  }
}

/** What a session is beside its log. */
async function describe(
  deps: CreationDeps,
  header: LogHeader,
  start: ImportSessionStart,
  workspaceId: string,
) {
  const agent = agentOf(header, workspaceId);
  const title = start.title === "" ? header.title : start.title;
  const { metadata } = header;
  checkAgainst(
    CreateSessionRequestSchema,
    create(CreateSessionRequestSchema, { agentId: agent.id, title, metadata }),
  );
  checkTexts({ title, metadata });
  const isUsable = async (id: string) => {
    const found = id === "" || id.includes("\0") ? undefined : await deps.environments.find(id);
    return found !== undefined && found.workspaceId === workspaceId && !found.archivedAt;
  };
  const named = start.environmentId;
  const own = named === "" && (await isUsable(header.environmentId)) ? header.environmentId : named;
  const environmentId = await findEnvironment(deps, own, workspaceId);
  const slotEnvironmentIds: Record<string, string> = {};
  for (const [slot, id] of Object.entries(header.slotEnvironmentIds)) {
    slotEnvironmentIds[slot] = (await isUsable(id)) ? id : environmentId;
  }
  const { vaultIds } = start;
  await checkVariables(deps, { vaultIds, workspaceId }, { agent, environmentId, slotEnvironmentIds });
  return {
    agentId: agent.id,
    agentVersion: agent.version,
    agent: toJsonString(AgentSchema, agent),
    environmentId,
    slotEnvironmentIds,
    title,
    metadata,
  };
}

const validator = createValidator();

function checkAgainst<S extends typeof AgentSchema | typeof CreateSessionRequestSchema>(
  schema: S,
  message: Parameters<typeof validator.validate<S>>[1],
): void {
  const result = validator.validate(schema, message);
  if (result.kind !== "valid") {
    throw withLine(invalidField("line 1.session", result.error?.message ?? "is not valid"), 1);
  }
}

function agentOf(header: LogHeader, workspaceId: string): Agent {
  let agent: Agent;
  try {
    agent = fromJson(AgentSchema, header.agent as never, { ignoreUnknownFields: true });
  } catch (error) {
    throw withLine(invalidField("line 1.session.agent", (error as Error).message.slice(0, 200)), 1);
  }
  agent.workspaceId = workspaceId;
  checkAgainst(AgentSchema, agent);
  return agent;
}

function withLine(error: unknown, line: number): unknown {
  if (!isTendonError(error)) return error;
  return new TendonError(error.reason, error.message, { line: String(line), ...error.metadata });
}

/** The same error with another path. */
function renamed(error: unknown, from: string, to: string): unknown {
  if (!isTendonError(error)) return error;
  const metadata = { ...error.metadata };
  if (metadata.field !== undefined) metadata.field = metadata.field.replace(from, to);
  return new TendonError(error.reason, error.message.replace(from, to), metadata);
}
