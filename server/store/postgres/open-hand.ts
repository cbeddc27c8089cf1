/** Finds the hand that a slot has, or asks for a new one. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type { OpenedHand, OpenHandRequest } from "../hands.ts";
import { withRepositories } from "./given-repositories.ts";
import { LIVING_HANDS } from "./hand-agents.ts";
import { HAND_COLUMNS, type HandRow, lockSession, toHand } from "./hands.ts";
import type { Transaction } from "./transaction.ts";

export async function openHand(transaction: Transaction, asked: OpenHandRequest): Promise<OpenedHand> {
  const request = await ofOwner(transaction, asked);
  const { sessionId } = request;
  if (request.requestId !== undefined) {
    const repeated = await findRequest(transaction, request);
    if (repeated !== undefined) return repeated;
  }
  if (request.refusal !== undefined) throw request.refusal;
  let environmentId = request.environmentId;
  let notice = "";
  if (sessionId !== undefined) {
    const session = await lockSession(transaction, sessionId, request.lease);
    if (session.workspace_id !== request.workspaceId) throw notFound("session", sessionId);
    if (session.archived) {
      throw new TendonError("SESSION_ARCHIVED", `session "${sessionId}" is archived; it takes no hands`);
    }
    const newest = await newestOfSlot(transaction, sessionId, request.slot);
    if (newest !== undefined && isLiving(newest)) {
      if (!request.speculative) await keep(transaction, sessionId, newest);
      return { kind: "hand", hand: toHand(newest), created: false };
    }
    if (newest?.state === "lost") {
      if (!(await lossWasTold(transaction, request, newest.lost_position))) {
        return { kind: "loss_not_told", hand: toHand(newest) };
      }
      notice = request.noticeAfterLoss;
    }
    const ofSlot = JSON.parse(session.slot_environment_ids) as Record<string, string>;
    const isDeclared = request.slot === "" || Object.hasOwn(ofSlot, request.slot);
    if (request.declaredSlotsOnly && !isDeclared) return { kind: "not_declared" };
    // Given back, for one because it was parked for too long: its files are gone as well (H2).
    if (newest?.state === "released") notice = request.noticeAfterRelease;
    if (await wasHandedOver(transaction, sessionId, request.slot, newest))
      notice = request.noticeAfterHandOver;
    environmentId ||= (request.slot === "" ? undefined : ofSlot[request.slot]) ?? session.environment_id;
  }
  const environment = await readEnvironment(transaction, request.workspaceId, environmentId);
  // A guess decides nothing: the call that it was made for may never run.
  if (sessionId !== undefined && request.slot === "" && !request.speculative)
    await noteHandAgents(transaction, sessionId, environment.spec);
  const most = await limitReached(transaction, request.workspaceId);
  if (most !== undefined) return { kind: "too_many", most };
  const { rows } = await transaction.query<HandRow>(
    `insert into hands (hand_id, workspace_id, session_id, slot, environment_id, environment, resources, request_id, state,
       of_session, notice, idle_timeout_ms, keep_parked_ms, max_age_ms, speculative)
     values ($1, $2, $3, $4, $5, $6, $7, $8, 'provisioning', $9, $10, $11, $12, $13, $14) returning ${HAND_COLUMNS}`,
    [
      newId("hand"),
      request.workspaceId,
      sessionId ?? null,
      request.slot,
      environment.environment_id,
      environment.spec,
      request.resources,
      request.requestId ?? null,
      sessionId !== undefined,
      notice,
      ...boundsOf(environment.spec),
      request.speculative && sessionId !== undefined,
    ],
  );
  return { kind: "hand", hand: toHand(rows[0]!), created: true };
}

/** Whoever has a hand of a self-hosted environment is not served by its workers any more. */
async function noteHandAgents(transaction: Transaction, sessionId: string, spec: string): Promise<void> {
  if ((JSON.parse(spec) as { selfHosted?: boolean }).selfHosted !== true) return;
  await transaction.query(
    `insert into session_servers (session_id, served_by)
     select coalesce(root_session_id, session_id), 'hand_agent' from sessions where session_id = $1 on conflict do nothing`,
    [sessionId],
  );
}

/**
 * As its owner asks: with what that was given for hands of the slot. A thread that works in the hands of its tree asks for
 * its root: its own lease is looked at here (E1).
 */
async function ofOwner(transaction: Transaction, asked: OpenHandRequest): Promise<OpenHandRequest> {
  const { sessionId } = asked;
  if (sessionId === undefined) return asked;
  const { rows } = await transaction.query<{ owner: string | null; given: string }>(
    `select s.hands_session_id as owner, coalesce(o.resources, s.resources) as given
     from sessions s left join sessions o on o.session_id = s.hands_session_id where s.session_id = $1`,
    [sessionId],
  );
  const owner = rows[0]?.owner ?? undefined;
  const request = {
    ...asked,
    resources: withRepositories(asked.resources, rows[0]?.given ?? "[]", asked.slot),
  };
  if (owner === undefined) return request;
  // Roots before their threads, as everybody locks them.
  await lockSession(transaction, owner, undefined);
  const thread = await lockSession(transaction, sessionId, request.lease);
  if (thread.archived) {
    throw new TendonError("SESSION_ARCHIVED", `session "${sessionId}" is archived; it takes no hands`);
  }
  return { ...request, sessionId: owner, lease: undefined };
}

/** Somebody asked for it: it is no guess any more. */
async function keep(
  transaction: Transaction,
  sessionId: string,
  { hand_id: handId }: HandRow,
): Promise<void> {
  const { rows } = await transaction.query<{ slot: string; environment: string }>(
    "update hands set speculative = false where hand_id = $1 and speculative returning slot, environment",
    [handId],
  );
  const guess = rows[0];
  if (guess?.slot === "") await noteHandAgents(transaction, sessionId, guess.environment);
}

/** How many hands the workspace may have, when it has them. One at a time where there is a limit, so that two at once do not get past it. */
async function limitReached(transaction: Transaction, workspaceId: string): Promise<number | undefined> {
  const { rows } = await transaction.query<{ most: number }>(
    "select coalesce((limits::json ->> 'hands')::integer, 0) as most from workspaces where workspace_id = $1",
    [workspaceId],
  );
  const most = rows[0]?.most ?? 0;
  if (most === 0) return undefined;
  await transaction.query("select 1 from workspaces where workspace_id = $1 for no key update", [
    workspaceId,
  ]);
  const counted = await transaction.query<{ hands: number }>(
    `select count(*)::integer as hands from hands where workspace_id = $1 and ${LIVING_HANDS}`,
    [workspaceId],
  );
  return (counted.rows[0]?.hands ?? 0) < most ? undefined : most;
}

/** In milliseconds. The text is canonical JSON of an EnvironmentSpec, where 64-bit numbers are strings. */
function boundsOf(spec: string): [idleTimeout: number, keepParked: number, maxAge: number] {
  const { idleTimeoutMs, keepParkedMs, maxAgeMs } = JSON.parse(spec) as Record<string, string | undefined>;
  return [Number(idleTimeoutMs ?? 0), Number(keepParkedMs ?? 0), Number(maxAgeMs ?? 0)];
}

function isLiving(row: HandRow): boolean {
  return row.state === "provisioning" || row.state === "ready" || row.state === "parked";
}

async function findRequest(
  transaction: Transaction,
  request: OpenHandRequest,
): Promise<OpenedHand | undefined> {
  // Two of the same at once: the second waits here for the first.
  await transaction.query("select pg_advisory_xact_lock(hashtextextended($1, 0))", [
    `hand ${request.workspaceId} ${request.requestId}`,
  ]);
  const { rows } = await transaction.query<HandRow>(
    `select ${HAND_COLUMNS} from hands where workspace_id = $1 and request_id = $2`,
    [request.workspaceId, request.requestId],
  );
  const row = rows[0];
  if (row === undefined) return undefined;
  if (row.owner_number > 1 && (row.session_id ?? undefined) !== request.sessionId) {
    throw new TendonError("HAND_RELEASED", `hand "${row.hand_id}" was handed over to another session`);
  }
  const isSame =
    (row.session_id ?? undefined) === request.sessionId &&
    (row.slot === request.slot || row.owner_number > 1) &&
    row.resources === request.resources &&
    (request.environmentId === "" || row.environment_id === request.environmentId);
  if (!isSame) {
    throw new TendonError("REQUEST_ID_REUSED", `request_id "${request.requestId}" was used for another hand`);
  }
  if (request.sessionId !== undefined) await lockSession(transaction, request.sessionId, request.lease);
  return { kind: "hand", hand: toHand(row), created: false };
}

/** The living hand of the slot, else the last one that was there to be missed. */
async function newestOfSlot(
  transaction: Transaction,
  sessionId: string,
  slot: string,
): Promise<HandRow | undefined> {
  const { rows } = await transaction.query<HandRow>(
    `select ${HAND_COLUMNS} from hands where session_id = $1 and slot = $2
       and (${LIVING_HANDS} or (state = 'lost' and ready_at is not null) or (state = 'released' and last_used_at is not null))
     order by (${LIVING_HANDS}) desc, created_at desc, hand_id desc limit 1`,
    [sessionId, slot],
  );
  return rows[0];
}

/** Looked at by the newest so many: slots that are handed over again and again are rare. */
const NEWEST_HAND_OVERS = 32;

/** Whether the slot's last hand is another session's now. */
async function wasHandedOver(
  transaction: Transaction,
  sessionId: string,
  slot: string,
  newest: HandRow | undefined,
): Promise<boolean> {
  const { rows } = await transaction.query<{ payload: string; created_at: Date }>(
    `select payload, created_at from events where session_id = $1 and type = 'hand.handed_over'
     order by position desc limit ${NEWEST_HAND_OVERS}`,
    [sessionId],
  );
  for (const { payload, created_at: at } of rows) {
    const facts = JSON.parse(payload) as { slot?: unknown; to_session_id?: unknown };
    if (facts.slot !== slot) continue;
    return facts.to_session_id !== undefined && (newest === undefined || at > newest.created_at);
  }
  return false;
}

/**
 * Whether the brain knew of the loss when it made the call (H2): a model request began after the loss and before the
 * call, or the loss was the answer to an earlier call. Calls that are not a brain's are told by the answer itself.
 */
async function lossWasTold(
  transaction: Transaction,
  request: OpenHandRequest,
  lostPosition: number | null,
): Promise<boolean> {
  if (request.toolUseId === undefined || lostPosition === null) return true;
  const { rows } = await transaction.query<{ told: boolean }>(
    `select exists (
       select 1 from events e where e.session_id = $1 and e.type = 'span.model_request_start'
         and e.position > $2 and e.position < use.position
     ) or (use.position > $2 and not exists (
       select 1 from events e where e.session_id = $1 and e.type = 'span.model_request_start'
     )) as told
     from events use where use.session_id = $1 and use.event_id = $3`,
    [request.sessionId, lostPosition, request.toolUseId],
  );
  return rows[0]?.told ?? true;
}

async function readEnvironment(
  transaction: Transaction,
  workspaceId: string,
  environmentId: string,
): Promise<{ environment_id: string; spec: string }> {
  const { rows } = await transaction.query<{ environment_id: string; spec: string; archived: boolean }>(
    `select environment_id, spec, archived_at is not null as archived from environments
     where workspace_id = $1 and (($2 = '' and is_default) or environment_id = $2)`,
    [workspaceId, environmentId],
  );
  const row = rows[0];
  if (row === undefined) {
    if (environmentId !== "") throw notFound("environment", environmentId);
    throw new TendonError("NOT_CONFIGURED", "the workspace has no default environment; name one");
  }
  if (row.archived && environmentId === "") {
    throw new TendonError("ENVIRONMENT_ARCHIVED", `environment "${row.environment_id}" is archived`);
  }
  return row;
}
