/** `tendon env`: where hands come from. */
import { clone, create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { Turns } from "../../kit/turns.ts";
import {
  ContainerSettingsSchema,
  type Environment,
  EnvironmentSchema,
  type EnvironmentSpec,
  EnvironmentSpecSchema,
  HandLimitsSchema,
  NetworkMode,
  NetworkModeSchema,
  NetworkSchema,
  type Packages,
  WarmPoolSchema,
} from "../../proto/gen/tendon/v1/environment_pb.js";
import { ListEnvironmentsResponseSchema } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { environmentIdOf } from "../named.ts";
import { readJsonFile } from "../read-file.ts";
import { formatFields, formatTable } from "../table.ts";
import {
  enumWord,
  enumWords,
  pairsText,
  parseCount,
  parseDuration,
  parseEnum,
  parsePair,
  parseRepeated,
  timeText,
} from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

interface SpecOptions {
  spec?: string;
  name?: string;
  description?: string;
  driver?: string;
  image?: string;
  label?: Record<string, string>;
  pool?: string;
  mcpTunnelHost?: string[];
  network?: NetworkMode;
  allowHost?: string[];
  variable?: Record<string, string>;
  setup?: string[];
  cpuMillis?: number;
  memoryMib?: number;
  pids?: number;
  tmpMib?: number;
  workdir?: string;
  runtime?: string;
  pull?: boolean;
  warm?: number;
  warmAge?: number;
  provisionTimeout?: number;
  idleTimeout?: number;
  stallTimeout?: number;
  keepParked?: number;
  maxAge?: number;
  sessionLog?: boolean;
  metadata?: Record<string, string>;
}

const MAX_INT32 = 2 ** 31 - 1;
const MIB = 1024n * 1024n;
const MAX_WARM = 32;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const YEAR_MS = 365 * 24 * HOUR_MS;

export function addEnvironmentCommands(program: Command): void {
  const environment = program
    .command("env")
    .alias("environment")
    .description("where hands come from: driver, image, limits, network, labels");
  environment.addHelpText(
    "after",
    `
Examples:
  tendon env create --name closed --network none
  tendon env list`,
  );
  addCreate(environment);
  const list = addPageOptions(environment.command("list").description("list environments, newest first"));
  list.option("--archived", "also archived ones");
  onAction<PageOptions & { archived?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeArchived: options.archived === true };
    const page = await api.environments.listEnvironments(request, CALL_WITHIN);
    const text = () => environmentTable(page.environments) + nextPageNote(page);
    output.message(ListEnvironmentsResponseSchema, page, text);
  });
  const get = environment.command("get <environment>").description("show an environment, by id or name");
  onAction(get, async ({ args, api, output }) => {
    const request = { environmentId: await environmentIdOf(api.environments, String(args[0])) };
    const { environment: found } = await api.environments.getEnvironment(request, CALL_WITHIN);
    output.message(EnvironmentSchema, found!, () => environmentText(found!));
  });
  addUpdate(environment);
  const archive = environment
    .command("archive <environment>")
    .description("end an environment; its sessions go on");
  onAction(archive, async ({ args, api, output }) => {
    const request = { environmentId: await environmentIdOf(api.environments, String(args[0])) };
    const { environment: archived } = await api.environments.archiveEnvironment(request, CALL_WITHIN);
    output.message(EnvironmentSchema, archived!, () => environmentText(archived!));
  });
}

function addCreate(environment: Command): void {
  const command = addSpecOptions(environment.command("create").description("make an environment"))
    .option("--default", "sessions that name no environment use it")
    .option("--request-id <id>", "makes repeating this command safe")
    .addHelpText(
      "after",
      "\nExamples:\n  tendon env create --name here --driver process --default\n  tendon env create --name closed --network none --label gpu=yes",
    );
  onAction<SpecOptions & { default?: boolean; requestId?: string }>(
    command,
    async ({ options, api, output }) => {
      const base = create(EnvironmentSpecSchema, { name: "environment" });
      const request = {
        requestId: options.requestId ?? "",
        spec: changedSpec(baseSpec(options, base), options),
        makeDefault: options.default === true,
      };
      const { environment: made } = await api.environments.createEnvironment(request, CALL_WITHIN);
      output.message(EnvironmentSchema, made!, () => environmentText(made!));
    },
  );
}

function addUpdate(environment: Command): void {
  const command = addSpecOptions(
    environment
      .command("update <environment>")
      .description(
        "change an environment; options that are left out keep what is there, hands that exist stay as they are",
      ),
  );
  onAction<SpecOptions>(command, async ({ options, args, api, output }) => {
    const environmentId = await environmentIdOf(api.environments, String(args[0]));
    const after = await new Turns("environment").untilDone(environmentId, async () => {
      const { environment } = await api.environments.getEnvironment({ environmentId }, CALL_WITHIN);
      const expectedSpec = environment!.spec!;
      const spec = changedSpec(baseSpec(options, clone(EnvironmentSpecSchema, expectedSpec)), options);
      const request = { environmentId, spec, expectedSpec };
      return (await api.environments.updateEnvironment(request, CALL_WITHIN)).environment;
    });
    output.message(EnvironmentSchema, after, () => environmentText(after));
  });
}

function addSpecOptions(command: Command): Command {
  return command
    .option("--name <name>", "name, unique among live environments")
    .option("--description <text>", "what it is for")
    .option("--driver <name>", "hand agents' driver; left out: the installation's default")
    .option("--image <image>", "image of container drivers, by name or digest")
    .option("--pull", "get an image that is missing")
    .option("--no-pull", "a missing image is an error again")
    .option("--workdir <path>", "working directory inside the container")
    .option("--runtime <name>", "runtime that the container engine knows, such as runsc")
    .option("--warm <n>", "hands that each hand agent keeps ready", parseCount(0, MAX_WARM))
    .option("--warm-age <duration>", "how long one waits before it is replaced", parseDuration(YEAR_MS))
    .option("--label <name=value>", "only hand agents with this label; may be given several times", parsePair)
    .option("--pool <pool>", "only hand agents of this pool")
    .option(
      "--mcp-tunnel-host <host[:port]>",
      "MCP servers that only the pool's network reaches, or *.example.com; may be given several times",
      parseRepeated,
    )
    .option(
      "--network <mode>",
      enumWords(NetworkModeSchema).join(", "),
      parseEnum<NetworkMode>(NetworkModeSchema),
    )
    .option(
      "--allow-host <host>",
      "with limited: a host, or *.example.com; may be given several times",
      parseRepeated,
    )
    .option(
      "--variable <name=value>",
      "of the hand's processes; nothing secret; may be given several times",
      parsePair,
    )
    .option("--setup <command>", "run once when a hand is made; may be given several times", parseRepeated)
    .option("--cpu-millis <n>", "thousandths of a processor", parseCount(0, MAX_INT32))
    .option("--memory-mib <n>", "memory in MiB", parseCount(0, MAX_INT32))
    .option("--pids <n>", "processes at a time", parseCount(0, MAX_INT32))
    .option("--tmp-mib <n>", "temporary files in MiB", parseCount(0, MAX_INT32))
    .option(
      "--provision-timeout <duration>",
      "how long a call waits for a hand, such as 60s",
      parseDuration(HOUR_MS),
    )
    .option("--idle-timeout <duration>", "when a hand is parked, such as 30m", parseDuration(YEAR_MS))
    .option(
      "--stall-timeout <duration>",
      "how long a call may show no progress before it is ended, such as 30m",
      parseDuration(DAY_MS),
    )
    .option("--keep-parked <duration>", "when a parked hand is released, such as 7d", parseDuration(YEAR_MS))
    .option("--max-age <duration>", "when a hand is released however it is used", parseDuration(YEAR_MS))
    .option("--session-log", "hands hold their session's log as /mnt/session/events.ndjson")
    .option("--no-session-log", "they do not any more")
    .option("--metadata <name=value>", "may be given several times", parsePair)
    .option("--spec <file>", "everything as the JSON form of EnvironmentSpec; other options win over it");
}

function baseSpec(options: SpecOptions, otherwise: EnvironmentSpec): EnvironmentSpec {
  return options.spec === undefined ? otherwise : readJsonFile(EnvironmentSpecSchema, options.spec);
}

function changedSpec(base: EnvironmentSpec, options: SpecOptions): EnvironmentSpec {
  const { limits, network } = base;
  const spec = create(EnvironmentSpecSchema, {
    ...base,
    name: options.name ?? base.name,
    description: options.description ?? base.description,
    driver: options.driver ?? base.driver,
    image: options.image ?? base.image,
    labels: { ...base.labels, ...options.label },
    pool: options.pool ?? base.pool,
    mcpTunnelHosts: options.mcpTunnelHost ?? base.mcpTunnelHosts,
    variables: { ...base.variables, ...options.variable },
    setup: options.setup ?? base.setup,
    provisionTimeoutMs: options.provisionTimeout ?? base.provisionTimeoutMs,
    idleTimeoutMs: options.idleTimeout === undefined ? base.idleTimeoutMs : BigInt(options.idleTimeout),
    stallTimeoutMs: options.stallTimeout === undefined ? base.stallTimeoutMs : BigInt(options.stallTimeout),
    keepParkedMs: options.keepParked === undefined ? base.keepParkedMs : BigInt(options.keepParked),
    maxAgeMs: options.maxAge === undefined ? base.maxAgeMs : BigInt(options.maxAge),
    sessionLog: options.sessionLog ?? base.sessionLog,
    metadata: { ...base.metadata, ...options.metadata },
  });
  if (options.network !== undefined || options.allowHost !== undefined) {
    const mode = options.network ?? (options.allowHost ? NetworkMode.LIMITED : (network?.mode ?? 0));
    spec.network = create(NetworkSchema, {
      mode,
      allowedHosts: options.allowHost ?? network?.allowedHosts ?? [],
    });
  }
  changeContainer(spec, options);
  const { cpuMillis, memoryMib, pids, tmpMib } = options;
  if ([cpuMillis, memoryMib, pids, tmpMib].some((each) => each !== undefined)) {
    spec.limits = create(HandLimitsSchema, {
      cpuMillis: cpuMillis ?? limits?.cpuMillis ?? 0,
      memoryBytes: memoryMib === undefined ? (limits?.memoryBytes ?? 0n) : BigInt(memoryMib) * MIB,
      pids: pids ?? limits?.pids ?? 0,
      tmpBytes: tmpMib === undefined ? (limits?.tmpBytes ?? 0n) : BigInt(tmpMib) * MIB,
    });
  }
  return spec;
}

/** What only container drivers have. */
function changeContainer(
  spec: EnvironmentSpec,
  { workdir, runtime, pull, warm, warmAge }: SpecOptions,
): void {
  const { container, warmPool } = spec;
  if (workdir !== undefined || runtime !== undefined || pull !== undefined) {
    spec.container = create(ContainerSettingsSchema, {
      workdir: workdir ?? container?.workdir ?? "",
      runtime: runtime ?? container?.runtime ?? "",
      pull: pull ?? container?.pull ?? false,
    });
  }
  if (warm === undefined && warmAge === undefined) return;
  spec.warmPool = create(WarmPoolSchema, {
    size: warm ?? warmPool?.size ?? 0,
    maxAgeMs: warmAge === undefined ? (warmPool?.maxAgeMs ?? 0n) : BigInt(warmAge),
  });
}

function environmentTable(environments: readonly Environment[]): string {
  const rows = environments.map(({ id, spec, isDefault, createdAt, archivedAt }) => [
    id,
    spec?.name ?? "",
    driverWord(spec, "default"),
    networkWord(spec, "default"),
    isDefault ? "yes" : "",
    archivedAt === undefined ? timeText(createdAt) : `${timeText(createdAt)} archived`,
  ]);
  return formatTable(["ID", "NAME", "DRIVER", "NETWORK", "DEFAULT", "CREATED"], rows);
}

/** Who serves a self-hosted environment is decided with each session: there is neither a driver nor a network of its own. */
function driverWord(spec: EnvironmentSpec | undefined, otherwise: string): string {
  return spec?.selfHosted === true ? "self-hosted" : spec?.driver || otherwise;
}

function networkWord(spec: EnvironmentSpec | undefined, otherwise: string): string {
  return spec?.selfHosted === true ? "" : enumWord(NetworkModeSchema, spec?.network?.mode ?? 0) || otherwise;
}

function packagesText(packages: Packages | undefined): string {
  if (packages === undefined) return "";
  const { apt, cargo, gem, go, npm, pip } = packages;
  return Object.entries({ apt, cargo, gem, go, npm, pip })
    .flatMap(([program, names]) => names.map((name) => `${program}:${name}`))
    .join(" ");
}

function environmentText({ id, spec, isDefault, createdAt, archivedAt }: Environment): string {
  return formatFields([
    ["id", id],
    ["name", spec?.name],
    ["description", spec?.description],
    ["driver", driverWord(spec, "the installation's default")],
    ["image", spec?.image],
    ["pull", spec?.container?.pull === true ? "yes" : ""],
    ["workdir", spec?.container?.workdir],
    ["runtime", spec?.container?.runtime],
    ["warm", spec?.warmPool?.size ? String(spec.warmPool.size) : ""],
    ["labels", pairsText(spec?.labels ?? {})],
    ["pool", spec?.pool],
    ["MCP tunnel hosts", spec?.mcpTunnelHosts.join(" ")],
    ["network", networkWord(spec, "the driver's default")],
    ["hosts", spec?.network?.allowedHosts.join(" ")],
    ["variables", pairsText(spec?.variables ?? {})],
    ["setup", spec?.setup.join("\n")],
    ["packages", packagesText(spec?.packages)],
    ["session log", spec?.sessionLog === true ? "yes" : ""],
    ["files", spec?.sessionFiles === true ? "yes" : ""],
    ["default", isDefault ? "yes" : ""],
    ["metadata", pairsText(spec?.metadata ?? {})],
    ["created", timeText(createdAt)],
    ["archived", timeText(archivedAt)],
  ]);
}
