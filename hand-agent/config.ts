/** The hand agent's settings, read once. Options of the command line win over variables. */
import { parseArgs } from "node:util";
import { StartupError } from "../kit/program.ts";
import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { integer, list, oneOf, type Parser, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type Settings, settingNames } from "../kit/settings/settings.ts";
import { dialSettings, programSettings } from "../kit/settings/shared-settings.ts";
import { tracingSettings } from "../kit/trace-settings.ts";
import { ISOLATION_MODES } from "./drivers/process/isolation.ts";
import { ReachList } from "./reach/reach-list.ts";

const MAX_LABELS = 32;

export const handAgentSettings = defineSettings({
  TENDON_URL: {
    parse: url(["http", "https"]),
    default: "http://127.0.0.1:7400",
    help: "Where the server is.",
  },
  TENDON_JOIN_TOKEN: {
    parse: text({ maxChars: 256 }),
    secret: true,
    help: "Takes the agent into a workspace at its first start; not needed later. Prefer the file: variables and options of a process can be seen on its machine.",
  },
  TENDON_HAND_AGENT_DATA_DIR: {
    parse: text(),
    default: ".tendon/hand-agent",
    help: "The agent's own directory: its key, its journal and the files of its hands.",
  },
  TENDON_HAND_AGENT_NAME: { parse: text({ maxChars: 128 }), default: "", help: "Name for people." },
  TENDON_HAND_AGENT_LABELS: {
    parse: labels(),
    help: "Labels that environments select by: name=value, separated by commas; at most 32.",
  },
  TENDON_HAND_AGENT_CAPACITY: {
    parse: integer({ min: 0, max: 1_000 }),
    default: 64,
    help: "Hands that the agent hosts at a time at most, without parked ones; with 0 it gets no new ones.",
  },
  TENDON_HAND_AGENT_PROVISIONS: {
    parse: integer({ min: 0, max: 1_000 }),
    default: 0,
    help: "Hands of one driver that are made at once at most; others wait in line. With 0 it is as many docker hands as the machine has cores, at least 2, and any number of others.",
  },
  TENDON_HAND_AGENT_ISOLATION: {
    parse: oneOf(["auto", ...ISOLATION_MODES]),
    default: "auto",
    help: "How process hands are kept apart from this machine; auto takes the strongest that works, but as root never none, which must be asked for.",
  },
  TENDON_HAND_AGENT_DRAIN_MS: {
    parse: integer({ min: 0, max: 24 * 3_600_000 }),
    default: 4_000,
    help: "How long running calls may go on once the agent was told to stop; then, or at a second signal, they are ended. A supervisor has to wait some 10 s longer.",
  },
  TENDON_HAND_AGENT_REACH: {
    parse: reachList(),
    help: "Hosts of the agent's network that it connects the proxy to, for MCP servers with hand-agent:// URLs or in an environment's list: host:port, *.domain:port or address:port, separated by commas; a port may be *. Without it none.",
  },
  TENDON_HAND_AGENT_REPOSITORY_CACHE_MB: {
    parse: integer({ min: 0, max: 1_000_000 }),
    default: 2_048,
    help: "Disk, in MiB, for clones of repositories that are kept so that later hands fetch only what is new; the least recently used go first. With 0 none are kept.",
  },
  TENDON_HAND_AGENT_TEST_SCRIPT: {
    parse: text(),
    help: "For tests alone: a file that says how hands of the driver `scripted` fail; without it there is no such driver.",
  },
  DOCKER_HOST: {
    parse: text(),
    default: "unix:///var/run/docker.sock",
    help: "The Docker engine for hands of the driver `docker`: unix:///path or tcp://host:port.",
  },
  DOCKER_TLS_VERIFY: {
    parse: text(),
    default: "",
    help: "Anything but empty: a tcp:// engine is spoken to with TLS, by the certificate in DOCKER_CERT_PATH.",
  },
  DOCKER_CERT_PATH: {
    parse: text(),
    default: "",
    help: "Directory with ca.pem, cert.pem and key.pem for the engine.",
  },
  TENDON_HAND_AGENT_REGISTRY_AUTH_FILE: {
    parse: text(),
    default: "",
    help: "File with credentials for pulling images, in the form of Docker's config.json (auths, credHelpers, credsStore), read for each pull; empty for none.",
  },
  TENDON_HAND_AGENT_MCP_FILE: {
    parse: text(),
    default: "",
    help: 'File that names the MCP servers (stdio) of this machine which become hands, each of the driver mcp-NAME: {"mcpServers": {"NAME": {"command", "args", "env", "cwd", "tools"}}}. Nobody else may write it. Read at start; empty for none.',
  },
  ...tracingSettings,
  ...dialSettings,
  ...programSettings,
});

export type HandAgentSettings = Settings<typeof handAgentSettings>;

export type Command = "run" | "help" | "version" | "print-config" | "doctor" | "purge";

export interface Invocation {
  readonly command: Command;
  /** Ends with the first connection, or when there is none, instead of trying again. */
  readonly once: boolean;
  /** What `purge` lists is removed. */
  readonly yes: boolean;
  readonly settings: HandAgentSettings;
}

export const USAGE = `Usage: tendon hand-agent run [options]     (the program alone: tendon-hand-agent.mjs [options])

Hosts hands for a Tendon server. It dials out and opens no port.

  --url URL           where the server is (TENDON_URL)
  --token-file FILE   file that holds the join token, for the first start (TENDON_JOIN_TOKEN_FILE)
  --token TOKEN       the token itself; other users of this machine can see it while the program runs
  --ca-file FILE      certificates (PEM) to trust for the server instead of the system's (TENDON_CA_FILE)
  --name NAME         name for people (TENDON_HAND_AGENT_NAME)
  --labels K=V,...    labels that environments select by (TENDON_HAND_AGENT_LABELS)
  --data-dir DIR      key, journal and hands (TENDON_HAND_AGENT_DATA_DIR)
  --once              end with the first connection instead of dialling again
  --doctor            say as JSON what hands this machine can make
  --purge             list the hands that the data directory of a stopped agent still has; with --yes
                      remove them with their files, for good
  --print-config      say what the program would run with
  --version
  --help

It ends with 3 when the agent was revoked, with 4 when the server refuses the join token.
`;

const OPTIONS = {
  url: { type: "string" },
  token: { type: "string" },
  "token-file": { type: "string" },
  "ca-file": { type: "string" },
  name: { type: "string" },
  labels: { type: "string" },
  "data-dir": { type: "string" },
  once: { type: "boolean" },
  doctor: { type: "boolean" },
  purge: { type: "boolean" },
  yes: { type: "boolean" },
  "print-config": { type: "boolean" },
  version: { type: "boolean" },
  help: { type: "boolean" },
} as const;

/** Throws StartupError or SettingsError with all that is wrong. The join token is gone from the environment afterwards. */
export function readInvocation(argv: readonly string[]): Invocation {
  const options = parseOptions(argv);
  const environment: Record<string, string | undefined> = { ...process.env };
  // Read once: nothing that the program starts may inherit it.
  for (const name of settingNames({ TENDON_JOIN_TOKEN: handAgentSettings.TENDON_JOIN_TOKEN }))
    delete process.env[name];
  const overrides: [string, string | undefined][] = [
    ["TENDON_URL", options.url],
    ["TENDON_HAND_AGENT_NAME", options.name],
    ["TENDON_HAND_AGENT_LABELS", options.labels],
    ["TENDON_HAND_AGENT_DATA_DIR", options["data-dir"]],
    ["TENDON_CA_FILE", options["ca-file"]],
  ];
  for (const [name, value] of overrides) if (value !== undefined) environment[name] = value;
  if (options.token !== undefined && options["token-file"] !== undefined)
    throw new StartupError("give --token-file or --token, not both", 2);
  if (options["token-file"] !== undefined) {
    environment.TENDON_JOIN_TOKEN_FILE = options["token-file"];
    delete environment.TENDON_JOIN_TOKEN;
  }
  if (options.token !== undefined) {
    environment.TENDON_JOIN_TOKEN = options.token;
    delete environment.TENDON_JOIN_TOKEN_FILE;
  }
  const settings = readSettings(handAgentSettings, environment, { knownElsewhere: KNOWN_NAMES });
  const command =
    (["help", "version", "print-config", "doctor", "purge"] as const).find((name) => options[name]) ?? "run";
  if (options.yes && command !== "purge") throw new StartupError("--yes goes with --purge alone", 2);
  return { command, once: options.once ?? false, yes: options.yes ?? false, settings };
}

function parseOptions(argv: readonly string[]) {
  try {
    return parseArgs({ args: [...argv], options: OPTIONS, allowPositionals: false, strict: true }).values;
  } catch (error) {
    throw new StartupError(`${(error as Error).message.split("\n")[0]}; --help says what there is`, 2);
  }
}

/** Looked at when the program starts, so that a typing error is not found out by a call. */
function reachList(): Parser<readonly string[]> {
  const entries = list((part) => part);
  return (value) => {
    const parts = entries(value);
    new ReachList(parts);
    return parts;
  };
}

function labels(): Parser<Readonly<Record<string, string>>> {
  const pair = list((part) => {
    const match = /^([A-Za-z0-9][A-Za-z0-9._/-]{0,62})=([^=]{0,255})$/.exec(part);
    if (match === null) throw new Error("must be name=value pairs, separated by commas");
    return [match[1]!, match[2]!] as const;
  });
  return (value) => {
    const pairs = pair(value);
    if (pairs.length > MAX_LABELS) throw new Error(`must hold at most ${MAX_LABELS} labels`);
    return Object.fromEntries(pairs);
  };
}
