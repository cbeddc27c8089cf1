import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { integer, oneOf, port, text, url } from "../kit/settings/parsers.ts";
import {
  defineSettings,
  readSettings,
  type Settings,
  SettingsError,
  type SettingValues,
} from "../kit/settings/settings.ts";
import { programSettings } from "../kit/settings/shared-settings.ts";
import { tracingSettings } from "../kit/trace-settings.ts";

export const serverSettings = defineSettings({
  TENDON_PORT: { parse: port(), default: 7400, help: "The one TCP port for everything; 0 takes a free one." },
  TENDON_HOST: {
    parse: text({ maxChars: 255 }),
    default: "127.0.0.1",
    help: "Address to listen on; 0.0.0.0 or :: for all, which should go together with TLS.",
  },
  TENDON_DATA_DIR: {
    parse: text(),
    default: ".tendon",
    help: "Folder of the server's key files and of the embedded Postgres.",
  },
  TENDON_DATABASE_URL: {
    parse: databaseUrl,
    secret: true,
    help: "Postgres 15 or newer. Not set: a Postgres of its own runs under the data directory.",
  },
  TENDON_DATABASE_LISTEN_URL: {
    parse: databaseUrl,
    secret: true,
    help: "A direct connection for LISTEN, when TENDON_DATABASE_URL leads through a transaction-mode pooler.",
  },
  TENDON_DATABASE_POOL: {
    parse: integer({ min: 3, max: 200 }),
    default: 10,
    help: "Most connections of this replica to a database of yours, 3 to 200; one of them listens.",
  },
  TENDON_TLS_CERT: { parse: text(), help: "Certificate chain (PEM file); read again when it changes." },
  TENDON_TLS_KEY: { parse: text(), help: "Private key of the certificate (PEM file)." },
  TENDON_TLS_CLIENT_CA: {
    parse: text(),
    help: "Certificates (PEM file) that must have signed the clients' certificates. Not set: clients need none.",
  },
  TENDON_H2C: {
    parse: oneOf(["auto", "mixed"]),
    default: "auto",
    help: "Where clear HTTP/2 goes: auto to the gRPC server, mixed to one that also answers Connect and plain HTTP, for meshes.",
  },
  TENDON_ADMIN_KEY: {
    parse: adminKey,
    secret: true,
    help: "An installation-wide admin key of your own, 32 characters or more. Not set: one is made and written to admin.key in the data directory.",
  },
  TENDON_PEER_URL: {
    parse: url(["http", "https"]),
    help: "Where the other replicas reach this one. Set it on every replica when there are several; a replica without it neither is reached nor reaches others.",
  },
  TENDON_CA_FILE: {
    parse: text(),
    help: "Certificates (PEM file) to trust in place of the system's, when this replica calls others.",
  },
  TENDON_DATABASE_WAIT_MS: {
    parse: integer({ min: 0, max: 600_000 }),
    default: 30_000,
    help: "How long a start waits for a database of yours that cannot be reached yet, in milliseconds, 0 to 600000.",
  },
  TENDON_LEASE_TTL_MS: {
    parse: integer({ min: 1_000, max: 600_000 }),
    default: 30_000,
    help: "How long a brain's lease lasts without renewal, in milliseconds, 1000 to 600000.",
  },
  TENDON_WORK_LEASE_TTL_SECONDS: {
    parse: integer({ min: 1, max: 3_600 }),
    default: 90,
    help: "How long a worker of a self-hosted environment keeps a session without a heartbeat, in seconds, 1 to 3600.",
  },
  TENDON_RATE_LIMIT_PER_MINUTE: {
    parse: integer({ min: 0, max: 1_000_000 }),
    default: 0,
    help: "Most requests a minute of one API key to this replica, over gRPC, Connect and the HTTP API together, up to 1000000; 0: as many as it likes.",
  },
  TENDON_RATE_LIMIT_BURST: {
    parse: integer({ min: 0, max: 1_000_000 }),
    default: 0,
    help: "How many of them may come at once after a pause, up to 1000000; 0: those of ten seconds.",
  },
  TENDON_WEBHOOK_EVENTS_KEPT: {
    parse: integer({ min: 100, max: 10_000_000 }),
    default: 200_000,
    help: "Most events for webhooks that are kept of a workspace, told or waiting, 100 to 10000000; beyond it the oldest go, those first of which nothing waits.",
  },
  TENDON_PROVISION_TIMEOUT_MS: {
    parse: integer({ min: 100, max: 3_600_000 }),
    default: 60_000,
    help: "How long a call waits for a hand where the environment does not say, in milliseconds, 100 to 3600000.",
  },
  TENDON_DEFAULT_DRIVER: {
    parse: text({ maxChars: 64 }),
    default: "process",
    help: "Hand-agent driver of environments that name none.",
  },
  TENDON_DEFAULT_IMAGE: {
    parse: text({ maxChars: 512 }),
    default: "",
    help: "Image of environments that name neither a driver nor an image, where the default driver makes containers; empty: they have to name one.",
  },
  ...tracingSettings,
  ...programSettings,
});

export type ServerConfig = SettingValues<typeof serverSettings>;

/** Throws a SettingsError with every problem. */
export function readConfig(): Settings<typeof serverSettings> {
  const settings = readSettings(serverSettings, process.env, { knownElsewhere: KNOWN_NAMES });
  const { TENDON_TLS_CERT, TENDON_TLS_KEY, TENDON_TLS_CLIENT_CA } = settings.values;
  if ((TENDON_TLS_CERT === undefined) !== (TENDON_TLS_KEY === undefined)) {
    throw new SettingsError(["TENDON_TLS_CERT and TENDON_TLS_KEY go together; set both or none"]);
  }
  if (TENDON_TLS_CLIENT_CA !== undefined && TENDON_TLS_CERT === undefined) {
    throw new SettingsError(["TENDON_TLS_CLIENT_CA needs TENDON_TLS_CERT and TENDON_TLS_KEY"]);
  }
  return settings;
}

/** Not every URL that Postgres' tools take is one by the web's rules: a unix socket's has no host. */
function databaseUrl(value: string): string {
  if (!/^postgres(ql)?:\/\/\S+$/.test(value)) {
    throw new Error("must read postgresql://user:password@host:5432/database");
  }
  return value;
}

function adminKey(value: string): string {
  if (!/^[\x21-\x7e]{32,512}$/.test(value)) {
    throw new Error("must be 32 to 512 printable characters without spaces");
  }
  return value;
}
