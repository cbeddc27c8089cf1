/** Hand agents in Postgres. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import {
  type DriverRecord,
  digestOfTools,
  type HandAgentRecord,
  type HandAgentStore,
  type MachineRecord,
  type ToolRecord,
  toolListText,
} from "../hand-agents.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

/** An agent that its replica has not heard from for so long is not online, whatever the row says. */
const SEEN_WITHIN = "interval '45 seconds'";

export const LIVING_HANDS = "state in ('provisioning', 'ready', 'parked')";

/** Hands that hold a place of their agent, counted as the agent counts them: parked ones are files only (H5). */
export const PLACED_HANDS = "(state in ('provisioning', 'ready') or destroy_pending)";

const ONLINE = `a.revoked_at is null and a.replica_id is not null and a.last_seen_at > clock_timestamp() - ${SEEN_WITHIN}`;

const COLUMNS = `a.hand_agent_id, a.workspace_id, a.pool, a.name, a.labels, a.public_key, a.enrolled_at, a.revoked_at, a.generation,
  a.replica_id, a.journal_id, a.build, a.drivers, a.capacity_hands, a.last_seen_at, a.resources,
  (select count(*) from hands h where h.hand_agent_id = a.hand_agent_id and ${PLACED_HANDS}) as hands,
  ${ONLINE} as online`;

const DUPLICATE = "hand_agent.duplicate";
/** For people who look: twice as long as between two notes. */
const SHOWN_COLUMNS = `${COLUMNS},
  (select max(u.at) from audit_entries u where u.subject = a.hand_agent_id and u.action = '${DUPLICATE}'
     and u.at > clock_timestamp() - interval '20 minutes') as duplicate_seen_at`;

interface HandAgentRow {
  hand_agent_id: string;
  workspace_id: string;
  pool: string;
  name: string;
  labels: string;
  public_key: Buffer;
  enrolled_at: Date;
  revoked_at: Date | null;
  generation: number;
  replica_id: string | null;
  journal_id: string | null;
  build: string;
  drivers: string;
  capacity_hands: number;
  last_seen_at: Date | null;
  resources: string;
  hands: number;
  online: boolean;
  duplicate_seen_at?: Date | null;
}

export function createHandAgentStore(pool: Pool): HandAgentStore {
  return {
    enroll: (request) => inTransaction(pool, (transaction) => enroll(transaction, request)),
    async find(handAgentId) {
      const { rows } = await pool.query<HandAgentRow>(
        `select ${COLUMNS} from hand_agents a where hand_agent_id = $1`,
        [handAgentId],
      );
      return rows[0] && toHandAgent(rows[0]);
    },
    list({ workspaceId, includeRevoked, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (!includeRevoked) where.push("revoked_at is null");
      const query = { columns: SHOWN_COLUMNS, from: "hand_agents a", where, values, page };
      return listPage<HandAgentRow, HandAgentRecord>(
        pool,
        { ...query, at: "enrolled_at", id: "hand_agent_id" },
        toHandAgent,
      );
    },
    async candidates(workspaceId, poolName) {
      const { rows } = await pool.query<HandAgentRow>(
        `select ${COLUMNS} from hand_agents a
         where workspace_id = $1 and revoked_at is null and ($2 = '' or pool = $2) order by hand_agent_id`,
        [workspaceId, poolName],
      );
      return rows.map(toHandAgent);
    },
    connect: (request) => inTransaction(pool, (transaction) => connect(transaction, request)),
    async noteMachine({ handAgentId, generation, machine }) {
      await pool.query("update hand_agents set resources = $3 where hand_agent_id = $1 and generation = $2", [
        handAgentId,
        generation,
        JSON.stringify(machine),
      ]);
    },
    noteDuplicate: (handAgentId) => noteDuplicate(pool, handAgentId),
    noteImages: (request) => inTransaction(pool, (transaction) => noteImages(transaction, request)),
    async disconnect({ handAgentId, generation }) {
      await pool.query(
        `update hand_agents set replica_id = null, last_seen_at = clock_timestamp()
         where hand_agent_id = $1 and generation = $2`,
        [handAgentId, generation],
      );
    },
    async touch(connections) {
      if (connections.length === 0) return { revoked: [], moved: [] };
      const { rows } = await pool.query<{ hand_agent_id: string; revoked: boolean; moved: boolean }>(
        `with held as (
           select a.hand_agent_id, a.generation > c.generation as moved
           from unnest($1::text[], $2::bigint[]) as c (hand_agent_id, generation) join hand_agents a using (hand_agent_id)
           order by a.hand_agent_id for update of a)
         update hand_agents a
         set last_seen_at = case when held.moved then a.last_seen_at else clock_timestamp() end
         from held where a.hand_agent_id = held.hand_agent_id
         returning a.hand_agent_id, a.revoked_at is not null as revoked, held.moved`,
        [connections.map(({ handAgentId }) => handAgentId), connections.map(({ generation }) => generation)],
      );
      const idsOf = (which: "revoked" | "moved") =>
        rows.filter((row) => row[which]).map((row) => row.hand_agent_id);
      return { revoked: idsOf("revoked"), moved: idsOf("moved") };
    },
    toolList: (digest) => readToolList(pool, digest),
  };
}

export async function readToolList(
  queryable: Queryable,
  digest: string,
): Promise<readonly ToolRecord[] | undefined> {
  const { rows } = await queryable.query<{ tools: string }>(
    "select tools from tool_lists where digest = $1",
    [digest],
  );
  return rows[0] && (JSON.parse(rows[0].tools) as ToolRecord[]);
}

export async function writeToolList(queryable: Queryable, tools: readonly ToolRecord[]): Promise<string> {
  const digest = digestOfTools(tools);
  await queryable.query("insert into tool_lists (digest, tools) values ($1, $2) on conflict do nothing", [
    digest,
    toolListText(tools),
  ]);
  return digest;
}

type Enrolment = Parameters<HandAgentStore["enroll"]>[0];
type Enrolled = Awaited<ReturnType<HandAgentStore["enroll"]>>;

async function enroll(transaction: Transaction, request: Enrolment): Promise<Enrolled> {
  const installationId = await readInstallationId(transaction);
  // The token's row is the lock that makes repeats and counts one at a time.
  const { rows } = await transaction.query<{
    join_token_id: string;
    workspace_id: string;
    pool: string;
    usable: boolean;
  }>(
    `select join_token_id, workspace_id, pool,
       uses_left > 0 and revoked_at is null and expires_at > clock_timestamp() as usable
     from join_tokens where secret_hash = $1 for update`,
    [request.tokenHash],
  );
  const token = rows[0];
  if (token === undefined) throw tokenInvalid();
  const key = await transaction.query<{
    hand_agent_id: string;
    workspace_id: string;
    pool: string;
    join_token_id: string;
    revoked: boolean;
  }>(
    `select hand_agent_id, workspace_id, pool, join_token_id, revoked_at is not null as revoked
     from hand_agents where public_key = $1`,
    [request.publicKey],
  );
  const known = key.rows[0];
  if (known?.revoked) {
    throw new TendonError(
      "HAND_AGENT_REVOKED",
      "this hand agent was revoked; it needs a new key to enrol again",
    );
  }
  if (known !== undefined && known.join_token_id === token.join_token_id) {
    return {
      handAgentId: known.hand_agent_id,
      workspaceId: known.workspace_id,
      pool: known.pool,
      installationId,
    };
  }
  if (!token.usable) throw tokenInvalid();
  if (known !== undefined) {
    // Another valid token: the key keeps its identity, and the token its use.
    if (known.workspace_id !== token.workspace_id) throw tokenInvalid();
    return {
      handAgentId: known.hand_agent_id,
      workspaceId: known.workspace_id,
      pool: known.pool,
      installationId,
    };
  }
  const handAgentId = newId("handAgent");
  await transaction.query("update join_tokens set uses_left = uses_left - 1 where join_token_id = $1", [
    token.join_token_id,
  ]);
  await transaction.query(
    `insert into hand_agents (hand_agent_id, workspace_id, pool, name, labels, public_key, join_token_id)
     values ($1, $2, $3, $4, $5, $6, $7)`,
    [
      handAgentId,
      token.workspace_id,
      token.pool,
      request.name,
      JSON.stringify(request.labels),
      request.publicKey,
      token.join_token_id,
    ],
  );
  await transaction.query(
    `insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail)
     values ($1, $2, $3, 'hand_agent.enroll', $4, $5)`,
    [
      newId("audit"),
      token.workspace_id,
      `join_token ${token.join_token_id}`,
      handAgentId,
      JSON.stringify({ name: request.name, pool: token.pool }),
    ],
  );
  return { handAgentId, workspaceId: token.workspace_id, pool: token.pool, installationId };
}

function tokenInvalid(): TendonError {
  // One text for all causes: whoever guesses learns nothing.
  return new TendonError(
    "JOIN_TOKEN_INVALID",
    "the join token is unknown, used up, expired or revoked; make a new one with: tendon hand-agent join-token",
  );
}

async function readInstallationId(transaction: Transaction): Promise<string> {
  const { rows } = await transaction.query<{ installation_id: string }>(
    "select installation_id from installation",
  );
  const id = rows[0]?.installation_id;
  if (id === undefined) throw new TendonError("UNAVAILABLE", "the installation is not set up yet; try again");
  return id;
}

type Connection = Parameters<HandAgentStore["connect"]>[0];

async function connect(
  transaction: Transaction,
  { handAgentId, replicaId, greeting, yields }: Connection,
): Promise<{ generation: number; installationId: string }> {
  if (yields) await refuseDuplicate(transaction, handAgentId);
  const installationId = await readInstallationId(transaction);
  for (const tools of greeting.toolLists.values()) await writeToolList(transaction, tools);
  const { rows } = await transaction.query<{ generation: number; revoked: boolean }>(
    `update hand_agents set generation = generation + 1, replica_id = $2, journal_id = $3, build = $4, drivers = $5,
       labels = $6, capacity_hands = $7, resources = $8, last_seen_at = clock_timestamp()
     where hand_agent_id = $1 returning generation, revoked_at is not null as revoked`,
    [
      handAgentId,
      replicaId,
      greeting.journalId,
      greeting.build,
      JSON.stringify(greeting.drivers),
      JSON.stringify(greeting.labels),
      greeting.capacityHands,
      JSON.stringify(greeting.machine ?? {}),
    ],
  );
  const row = rows[0];
  if (row === undefined) throw notFound("hand agent", handAgentId);
  if (row.revoked) throw new TendonError("HAND_AGENT_REVOKED", `hand agent "${handAgentId}" was revoked`);
  return { generation: row.generation, installationId };
}

/** Holds the row's lock to the end of the transaction: whoever is online now stays so for it. */
async function refuseDuplicate(transaction: Transaction, handAgentId: string): Promise<void> {
  const { rows } = await transaction.query<{ online: boolean }>(
    `select ${ONLINE} as online from hand_agents a where a.hand_agent_id = $1 for update`,
    [handAgentId],
  );
  if (rows[0]?.online !== true) return;
  throw new TendonError(
    "HAND_AGENT_DUPLICATED",
    `another process is connected as hand agent "${handAgentId}": two run with copies of one data directory; stop one, and let it join with a directory of its own`,
    { hand_agent_id: handAgentId },
  );
}

/** Its row is locked, so that of two who note the same at once the second one sees what the first has noted. */
function noteDuplicate(pool: Pool, handAgentId: string): Promise<void> {
  return inTransaction(pool, async (transaction) => {
    await transaction.query("select 1 from hand_agents where hand_agent_id = $1 for no key update", [
      handAgentId,
    ]);
    await transaction.query(
      `insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail)
       select $1, a.workspace_id, 'hand_agent ' || a.hand_agent_id, '${DUPLICATE}', a.hand_agent_id, '{}'
       from hand_agents a where a.hand_agent_id = $2 and not exists (
         select 1 from audit_entries u where u.subject = $2 and u.action = '${DUPLICATE}'
           and u.at > clock_timestamp() - interval '10 minutes')`,
      [newId("audit"), handAgentId],
    );
  });
}

/** Drivers that the agent did not describe are left out. */
async function noteImages(
  transaction: Transaction,
  { handAgentId, generation, driver, images }: Parameters<HandAgentStore["noteImages"]>[0],
): Promise<void> {
  const { rows } = await transaction.query<{ drivers: string }>(
    "select drivers from hand_agents where hand_agent_id = $1 and generation = $2 for update",
    [handAgentId, generation],
  );
  if (rows[0] === undefined) return;
  const drivers = (JSON.parse(rows[0].drivers) as DriverRecord[]).map((known) =>
    known.name === driver ? { ...known, images } : known,
  );
  await transaction.query("update hand_agents set drivers = $2 where hand_agent_id = $1", [
    handAgentId,
    JSON.stringify(drivers),
  ]);
}

function toHandAgent(row: HandAgentRow): HandAgentRecord {
  return {
    handAgentId: row.hand_agent_id,
    workspaceId: row.workspace_id,
    pool: row.pool,
    name: row.name,
    labels: JSON.parse(row.labels) as Record<string, string>,
    publicKey: row.public_key,
    enrolledAt: row.enrolled_at,
    revokedAt: row.revoked_at ?? undefined,
    generation: row.generation,
    replicaId: row.replica_id ?? undefined,
    journalId: row.journal_id ?? undefined,
    build: row.build,
    drivers: JSON.parse(row.drivers) as DriverRecord[],
    capacityHands: row.capacity_hands,
    hands: row.hands,
    lastSeenAt: row.last_seen_at ?? undefined,
    machine: row.resources === "{}" ? undefined : (JSON.parse(row.resources) as MachineRecord),
    online: row.online,
    duplicateSeenAt: row.duplicate_seen_at ?? undefined,
  };
}
