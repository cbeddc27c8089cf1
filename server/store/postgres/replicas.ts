import { create } from "@bufbuild/protobuf";
import {
  type ConnectedHarness,
  ConnectedHarnessSchema,
  type ConnectedProxy,
  ConnectedProxySchema,
} from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import { type Presence, type ProxyRow, type ReplicaStore, SEEN_WITHIN_MS } from "../replicas.ts";
import type { Pool } from "./pool.ts";
import { inTransaction } from "./transaction.ts";

/** Longer than a session token lives, with room for clocks that differ. */
const KEYS_KEPT = "interval '30 minutes'";
const REPLICAS_KEPT = "interval '1 day'";
const SEEN = `clock_timestamp() - interval '${SEEN_WITHIN_MS} milliseconds'`;
/** Whoever holds the connection removes the row when it ends; a replica that died could not. */
const CONNECTED = `exists (select from replicas r where r.replica_id = c.replica_id and r.seen_at > ${SEEN})`;

interface PresenceRow {
  version: string;
  replicas: number;
  harnesses: string;
  proxies: string;
  agents: string;
}

interface HarnessJson {
  instance_id: string;
  build: string;
  loops: string;
  capacity: number;
  sessions: number;
  model_source: string;
}

interface ProxyJson {
  instance_id: string;
  build: string;
  url: string;
  sealing_keys: string;
}

export function createReplicaStore(pool: Pool): ReplicaStore {
  return {
    ...replicaMethods(pool),
    ...harnessMethods(pool),
    ...proxyMethods(pool),
    presence: (workspaceId) => readPresence(pool, workspaceId),
  };
}

function replicaMethods(
  pool: Pool,
): Pick<ReplicaStore, "announce" | "heartbeat" | "retire" | "others" | "publicKeys"> {
  return {
    async announce({ replicaId, build, peerUrl, publicKeys }) {
      await pool.query(
        `insert into replicas (replica_id, build, peer_url, public_keys) values ($1, $2, $3, $4)
         on conflict (replica_id) do update set build = excluded.build, peer_url = excluded.peer_url,
           public_keys = excluded.public_keys, started_at = now(), seen_at = now()`,
        [replicaId, build, peerUrl, publicKeys],
      );
    },
    async heartbeat(replicaId) {
      const { rowCount } = await pool.query(
        "update replicas set seen_at = clock_timestamp() where replica_id = $1",
        [replicaId],
      );
      await pool.query(`delete from replicas where seen_at < clock_timestamp() - ${REPLICAS_KEPT}`);
      return rowCount === 1;
    },
    async retire(replicaId) {
      await pool.query(
        `with harnesses as (delete from connected_harnesses where replica_id = $1),
              proxies as (delete from connected_proxies where replica_id = $1)
         update replicas set seen_at = ${SEEN} where replica_id = $1`,
        [replicaId],
      );
    },
    async others(replicaId) {
      const { rows } = await pool.query<{ replica_id: string; peer_url: string }>(
        `select replica_id, peer_url from replicas where replica_id <> $1 and seen_at > ${SEEN} order by replica_id`,
        [replicaId],
      );
      return rows.map((row) => ({ replicaId: row.replica_id, peerUrl: row.peer_url }));
    },
    async publicKeys() {
      const { rows } = await pool.query<{ public_keys: string }>(
        `select public_keys from replicas where seen_at > clock_timestamp() - ${KEYS_KEPT} order by started_at desc`,
      );
      return rows.map((row) => row.public_keys);
    },
  };
}

function harnessMethods(pool: Pool): Pick<ReplicaStore, "harnessConnected" | "harnessSeen" | "harnessGone"> {
  return {
    async harnessConnected(harness) {
      await pool.query(
        `insert into connected_harnesses (instance_id, replica_id, build, loops, capacity, model_source, seen_at)
         values ($1, $2, $3, $4, $5, $6, clock_timestamp())
         on conflict (instance_id) do update set replica_id = excluded.replica_id, build = excluded.build,
           loops = excluded.loops, capacity = excluded.capacity, model_source = excluded.model_source,
           seen_at = excluded.seen_at`,
        [
          harness.instanceId,
          harness.replicaId,
          harness.build,
          JSON.stringify(harness.loops),
          harness.capacity,
          harness.modelSource,
        ],
      );
    },
    async harnessSeen(instanceId, replicaId, sessions) {
      await pool.query(
        `update connected_harnesses set seen_at = clock_timestamp(), sessions = $3
         where instance_id = $1 and replica_id = $2`,
        [instanceId, replicaId, sessions],
      );
    },
    async harnessGone(instanceId, replicaId) {
      await pool.query("delete from connected_harnesses where instance_id = $1 and replica_id = $2", [
        instanceId,
        replicaId,
      ]);
    },
  };
}

function proxyMethods(
  pool: Pool,
): Pick<ReplicaStore, "proxyConnected" | "proxyGone" | "proxyUrls" | "sealingKeys"> {
  return {
    proxyConnected: (proxy) => inTransaction(pool, (transaction) => connectProxy(transaction, proxy)),
    async proxyGone(instanceId, replicaId) {
      await pool.query("delete from connected_proxies where instance_id = $1 and replica_id = $2", [
        instanceId,
        replicaId,
      ]);
    },
    async proxyUrls() {
      const proxies = await pool.query<{
        url: string;
        replica_id: string;
        web_fetch: boolean;
        web_search: boolean;
      }>(
        `select c.url, c.replica_id, c.web_fetch, c.web_search from connected_proxies c where ${CONNECTED} order by c.instance_id`,
      );
      const peers = await pool.query<{ peer_url: string }>(
        `select peer_url from replicas where peer_url <> '' and seen_at > ${SEEN} order by replica_id`,
      );
      return {
        proxies: proxies.rows.map((row) => ({
          url: row.url,
          replicaId: row.replica_id,
          web: { fetch: row.web_fetch, search: row.web_search },
        })),
        peers: peers.rows.map((row) => row.peer_url),
      };
    },
    async sealingKeys() {
      const connected = await pool.query<{ sealing_keys: string }>(
        `select c.sealing_keys from connected_proxies c where ${CONNECTED} order by c.instance_id`,
      );
      const published = await pool.query<{ key_id: string; public_jwk: string }>(
        "select key_id, public_jwk from sealing_keys order by published_at desc, key_id limit 100",
      );
      return {
        connected: connected.rows.map((row) => JSON.parse(row.sealing_keys) as string[]),
        published: published.rows.map((row) => ({ keyId: row.key_id, publicJwk: row.public_jwk })),
      };
    },
  };
}

async function connectProxy(db: Pick<Pool, "query">, proxy: ProxyRow): Promise<void> {
  for (const { keyId, publicJwk } of [...proxy.sealingKeys].reverse()) {
    await db.query(
      `insert into sealing_keys (key_id, public_jwk, published_at) values ($1, $2, clock_timestamp())
       on conflict do nothing`,
      [keyId, publicJwk],
    );
  }
  await db.query(
    `insert into connected_proxies (instance_id, replica_id, build, url, sealing_keys, web_fetch, web_search, seen_at)
     values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp())
     on conflict (instance_id) do update set replica_id = excluded.replica_id, build = excluded.build,
       url = excluded.url, sealing_keys = excluded.sealing_keys, web_fetch = excluded.web_fetch,
       web_search = excluded.web_search, seen_at = excluded.seen_at`,
    [
      proxy.instanceId,
      proxy.replicaId,
      proxy.build,
      proxy.url,
      JSON.stringify(proxy.sealingKeys.map(({ keyId }) => keyId)),
      proxy.web.fetch,
      proxy.web.search,
    ],
  );
}

/** One statement: a health check should cost one round trip. */
async function readPresence(pool: Pool, workspaceId: string | undefined): Promise<Presence> {
  const { rows } = await pool.query<PresenceRow>(
    `select current_setting('server_version') as version,
       (select count(*) from replicas where seen_at > ${SEEN}) as replicas,
       (select coalesce(json_agg(c order by c.instance_id), '[]') from connected_harnesses c where ${CONNECTED}) as harnesses,
       (select coalesce(json_agg(c order by c.instance_id), '[]') from connected_proxies c where ${CONNECTED}) as proxies,
       (select coalesce(json_agg(c.drivers order by c.hand_agent_id), '[]') from hand_agents c
          where c.revoked_at is null and c.last_seen_at > clock_timestamp() - interval '45 seconds'
            and ($1::text is null or c.workspace_id = $1)
            and ${CONNECTED}) as agents`,
    [workspaceId ?? null],
  );
  const row = rows[0]!;
  const drivers = JSON.parse(row.agents) as string[];
  return {
    databaseVersion: row.version,
    replicas: row.replicas,
    harnesses: (JSON.parse(row.harnesses) as HarnessJson[]).map(toHarness),
    proxies: (JSON.parse(row.proxies) as ProxyJson[]).map(toProxy),
    handAgentsOnline: drivers.length,
    isolation: [...new Set(drivers.flatMap(isolationOf))],
  };
}

function toHarness(row: HarnessJson): ConnectedHarness {
  return create(ConnectedHarnessSchema, {
    instanceId: row.instance_id,
    build: row.build,
    loops: JSON.parse(row.loops) as string[],
    capacity: row.capacity,
    sessions: row.sessions,
    modelSource: row.model_source,
  });
}

function toProxy(row: ProxyJson): ConnectedProxy {
  return create(ConnectedProxySchema, {
    instanceId: row.instance_id,
    build: row.build,
    url: row.url,
    sealingKeyIds: JSON.parse(row.sealing_keys) as string[],
  });
}

/** "process: bubblewrap" for each driver that can be used. */
function isolationOf(drivers: string): string[] {
  const list = JSON.parse(drivers) as { name: string; available?: boolean; detail?: string }[];
  return list.filter(({ available }) => available).map(({ name, detail }) => `${name}: ${detail ?? ""}`);
}
