/**
 * What each program may know when it is started here: the variables of its own table and those of any Node program. A
 * test compares this with the programs' tables. Secrets never stand in a child's environment; they go through pipes.
 */
import type { Environment } from "../config.ts";
import type { ProgramName } from "../program-files.ts";

export interface ProgramVariables {
  readonly plain: readonly string[];
  /** Also as NAME_FILE. */
  readonly secret: readonly string[];
}

const PROXIES = ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];
const EVERY = ["TENDON_LOG_LEVEL", "TENDON_LIFELINE_FD", "TENDON_FAILPOINTS"];
const TRACING = [
  "TENDON_OTLP_ENDPOINT",
  "OTEL_EXPORTER_OTLP_ENDPOINT",
  "TENDON_TRACE_RATIO",
  "OTEL_TRACES_SAMPLER_ARG",
];

export const PROGRAM_VARIABLES: Readonly<Record<ProgramName, ProgramVariables>> = {
  server: {
    plain: [
      ...EVERY,
      ...TRACING,
      "TENDON_PORT",
      "TENDON_HOST",
      "TENDON_DATA_DIR",
      "TENDON_DATABASE_POOL",
      "TENDON_DATABASE_WAIT_MS",
      "TENDON_TLS_CERT",
      "TENDON_TLS_KEY",
      "TENDON_TLS_CLIENT_CA",
      "TENDON_H2C",
      "TENDON_PEER_URL",
      "TENDON_CA_FILE",
      "TENDON_LEASE_TTL_MS",
      "TENDON_PROVISION_TIMEOUT_MS",
      "TENDON_WORK_LEASE_TTL_SECONDS",
      "TENDON_RATE_LIMIT_PER_MINUTE",
      "TENDON_RATE_LIMIT_BURST",
      "TENDON_WEBHOOK_EVENTS_KEPT",
      "TENDON_DEFAULT_DRIVER",
      "TENDON_DEFAULT_IMAGE",
    ],
    secret: ["TENDON_DATABASE_URL", "TENDON_DATABASE_LISTEN_URL", "TENDON_ADMIN_KEY", "TENDON_OTLP_HEADERS"],
  },
  harness: {
    plain: [
      ...EVERY,
      ...PROXIES,
      ...TRACING,
      "TENDON_URL",
      "TENDON_CA_FILE",
      "TENDON_HARNESS_CAPACITY",
      "TENDON_HARNESS_HISTORY_MIB",
      "TENDON_MODEL",
      "TENDON_AUTO_POLICY_MODEL",
      "TENDON_OUTCOME_MODEL",
      "TENDON_MODEL_TIMEOUT_MS",
      "TENDON_MODEL_RETRY_FIRST_MS",
      "TENDON_MODEL_RETRY_MAX_MS",
      "TENDON_MODEL_RETRY_TOTAL_MS",
      "TENDON_CLAUDE_CODE_PROCESSES",
      "TENDON_EXTERNAL_LOOPS",
      "TENDON_EXTERNAL_LOOP_PROCESSES",
      "ANTHROPIC_BASE_URL",
    ],
    secret: ["TENDON_HARNESS_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "TENDON_OTLP_HEADERS"],
  },
  "mcp-proxy": {
    plain: [
      ...EVERY,
      ...PROXIES,
      ...TRACING,
      "TENDON_URL",
      "TENDON_CA_FILE",
      "TENDON_PROXY_HOST",
      "TENDON_PROXY_PORT",
      "TENDON_PROXY_URL",
      "TENDON_PROXY_SEALING_KEY_FILE",
      "TENDON_PROXY_DESTINATIONS",
      "TENDON_PROXY_DENY",
      "TENDON_PROXY_WEBHOOKS_TO",
      "TENDON_PROXY_UPSTREAM_CA_FILE",
      "TENDON_WEB_FETCH",
      "TENDON_WEB_SEARCH_URL",
    ],
    secret: ["TENDON_PROXY_KEY", "TENDON_PROXY_SEALING_KEYS", "TENDON_WEB_SEARCH_KEY", "TENDON_OTLP_HEADERS"],
  },
  "hand-agent": {
    plain: [
      ...EVERY,
      ...PROXIES,
      ...TRACING,
      "TENDON_URL",
      "TENDON_CA_FILE",
      "TENDON_HAND_AGENT_DATA_DIR",
      "TENDON_HAND_AGENT_NAME",
      "TENDON_HAND_AGENT_LABELS",
      "TENDON_HAND_AGENT_CAPACITY",
      "TENDON_HAND_AGENT_PROVISIONS",
      "TENDON_HAND_AGENT_ISOLATION",
      "TENDON_HAND_AGENT_DRAIN_MS",
      "TENDON_HAND_AGENT_TEST_SCRIPT",
      "DOCKER_HOST",
      "DOCKER_TLS_VERIFY",
      "DOCKER_CERT_PATH",
      "TENDON_HAND_AGENT_MCP_FILE",
      "TENDON_HAND_AGENT_REACH",
      "TENDON_HAND_AGENT_REGISTRY_AUTH_FILE",
      "TENDON_HAND_AGENT_REPOSITORY_CACHE_MB",
    ],
    secret: ["TENDON_JOIN_TOKEN", "TENDON_OTLP_HEADERS"],
  },
};

/** What any program needs of the machine. */
const MACHINE = [
  "PATH",
  "HOME",
  "USER",
  "LOGNAME",
  "LANG",
  "LC_ALL",
  "LC_CTYPE",
  "TZ",
  "TMPDIR",
  "XDG_RUNTIME_DIR",
  "NODE_OPTIONS",
  "NODE_EXTRA_CA_CERTS",
  "SSL_CERT_FILE",
  "SSL_CERT_DIR",
];

export interface ChildSettings {
  readonly variables: Record<string, string>;
  /** To be given through pipes. */
  readonly secrets: Record<string, string>;
}

/** What `program` gets of the launcher's own environment. `given` wins, also over the file form of a secret. */
export function childSettings(
  program: ProgramName,
  inherited: Environment,
  given: ChildSettings,
): ChildSettings {
  const { plain, secret } = PROGRAM_VARIABLES[program];
  const variables: Record<string, string> = {};
  const secrets: Record<string, string> = {};
  for (const name of [...MACHINE, ...plain, ...secret.map((one) => `${one}_FILE`)])
    copy(inherited, name, variables);
  for (const name of secret) copy(inherited, name, secrets);
  for (const name of secret) {
    if (!(name in given.secrets) && !(`${name}_FILE` in given.variables)) continue;
    delete variables[`${name}_FILE`];
    delete secrets[name];
  }
  return { variables: { ...variables, ...given.variables }, secrets: { ...secrets, ...given.secrets } };
}

function copy(from: Environment, name: string, to: Record<string, string>): void {
  const value = from[name];
  if (value) to[name] = value;
}
