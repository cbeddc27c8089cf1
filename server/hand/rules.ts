/** Decisions about hands, without effects. */
import { isDeepStrictEqual } from "node:util";
import { invalidField } from "../../kit/errors.ts";
import type { EnvironmentSpec } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { ToolUseRecord } from "../store/executions.ts";
import type { DriverRecord, HandAgentRecord, MachineRecord } from "../store/hand-agents.ts";
import { DEFAULT_CALL_TIMEOUT_MS, MAX_CALL_TIMEOUT_MS } from "./timing.ts";

/** What an environment asks of the agent that hosts its hands. */
export interface PlacementWish {
  readonly driver: string;
  readonly pool: string;
  readonly labels: Readonly<Record<string, string>>;
  /** Preferred is an agent that has it; empty: none is needed. */
  readonly image: string;
  /** What the hand is to be given; 0: not said. */
  readonly memoryBytes: number;
  /** The environment, when it is self-hosted: its hand agents are those whose label says so. */
  readonly selfHostedId?: string;
}

/** With "true" a hand agent serves all self-hosted environments of its workspace, with an environment's id that one. */
export const SELF_HOSTED_LABEL = "self_hosted";

/** An agent whose disk has less than this is given no hands: they could not even write what they are asked to. */
const MIN_FREE_DISK_BYTES = 256 * 1024 * 1024;

export type Placement =
  | {
      readonly kind: "place";
      readonly agent: HandAgentRecord;
      readonly driver: DriverRecord;
      readonly why: string;
    }
  /** Nowhere now; `why` is for people and models. `full`: agents that could host it but for their capacity. */
  | { readonly kind: "wait"; readonly why: string; readonly full?: readonly HandAgentRecord[] };

export function wishOf(spec: EnvironmentSpec, defaultDriver: string, environmentId: string): PlacementWish {
  return {
    ...(spec.selfHosted && { selfHostedId: environmentId }),
    driver: spec.driver || defaultDriver,
    pool: spec.pool,
    labels: spec.labels,
    image: spec.image,
    memoryBytes: Number(spec.limits?.memoryBytes ?? 0n),
  };
}

/**
 * Chooses among the workspace's agents. A pool is reserved: its agents host what names it, and nothing else. Labels, driver, memory, disk and room decide who can; among those one that has
 * the image, then most free slots, then the id. The reason names the first condition that nobody meets.
 */
export function choosePlacement(
  wish: PlacementWish,
  agents: readonly HandAgentRecord[],
  isReachable: (agent: HandAgentRecord) => boolean,
): Placement {
  const inPool = agents.filter((agent) => agent.pool === wish.pool);
  const where = wish.pool === "" ? "" : ` in pool "${wish.pool}"`;
  if (inPool.length === 0) {
    const othersOnly = wish.pool === "" && agents.length > 0;
    const why = othersOnly
      ? "the workspace's hand agents are all in pools, and the environment names none"
      : `no hand agent${where} has joined the workspace`;
    return { kind: "wait", why };
  }
  const online = inPool.filter(isReachable);
  if (online.length === 0) {
    const elsewhere = inPool.some((agent) => agent.online);
    const why = elsewhere
      ? `no hand agent${where} is connected to this replica of the server; others are connected to another`
      : `no hand agent${where} is online`;
    return { kind: "wait", why };
  }
  const willing = online.filter((agent) => servesSelfHosted(agent, wish));
  if (willing.length === 0) {
    return {
      kind: "wait",
      why: `the environment is self-hosted, and no online hand agent's label says that it serves it`,
    };
  }
  const labelled = willing.filter((agent) => hasLabels(agent.labels, wish.labels));
  if (labelled.length === 0) {
    return { kind: "wait", why: `no online hand agent${where} carries the labels ${labelText(wish.labels)}` };
  }
  const able = labelled.filter((agent) => driverOf(agent, wish.driver) !== undefined);
  if (able.length === 0) return { kind: "wait", why: whyNoDriver(wish.driver, labelled, where) };
  const large = able.filter(
    ({ machine }) => machine === undefined || whyTooSmall(wish, machine) === undefined,
  );
  if (large.length === 0) return { kind: "wait", why: `${whyTooSmall(wish, able[0]!.machine!)}${where}` };
  const agent = large.filter(({ hands, capacityHands }) => hands < capacityHands).sort(byPreference(wish))[0];
  if (agent === undefined) {
    const count =
      large.length === 1 ? "the fitting hand agent is" : `all ${large.length} fitting hand agents are`;
    // Parking a hand makes no room where there is to be none.
    return {
      kind: "wait",
      why: `${count} full`,
      full: large.filter(({ capacityHands }) => capacityHands > 0),
    };
  }
  const driver = driverOf(agent, wish.driver)!;
  const name = agent.name === "" ? agent.handAgentId : `${agent.name} (${agent.handAgentId})`;
  const image = hasImage(agent, wish) ? ", which has its image" : "";
  return { kind: "place", agent, driver, why: `placed on ${name} by driver ${driver.name}${image}` };
}

function byPreference(wish: PlacementWish): (a: HandAgentRecord, b: HandAgentRecord) => number {
  const free = (agent: HandAgentRecord) => agent.capacityHands - agent.hands;
  return (a, b) =>
    Number(hasImage(b, wish)) - Number(hasImage(a, wish)) ||
    free(b) - free(a) ||
    (a.handAgentId < b.handAgentId ? -1 : 1);
}

function hasImage(agent: HandAgentRecord, { driver, image }: PlacementWish): boolean {
  return image !== "" && (driverOf(agent, driver)?.images?.includes(image) ?? false);
}

/** What the machine has not enough of; undefined when it has. What a machine does not say stands in nobody's way. */
function whyTooSmall({ memoryBytes }: PlacementWish, machine: MachineRecord): string | undefined {
  const { memoryBytes: has, memoryFreeBytes, diskBytes, diskFreeBytes } = machine;
  if (memoryBytes > 0 && has > 0 && memoryFreeBytes < memoryBytes) {
    return `no fitting hand agent has ${mib(memoryBytes)} of memory free`;
  }
  if (diskBytes > 0 && diskFreeBytes < MIN_FREE_DISK_BYTES) {
    return `the fitting hand agents have less than ${mib(MIN_FREE_DISK_BYTES)} of disk free`;
  }
  return undefined;
}

function mib(bytes: number): string {
  return `${Math.ceil(bytes / 1024 / 1024)} MiB`;
}

/** INVALID_FIELD for a name that could be taken for something else where tools are named after slots. */
export function checkSlot(slot: string, field: string): void {
  if (slot.includes("__") || slot === "mcp") {
    throw invalidField(field, 'a slot\'s name has no "__" and is not "mcp"');
  }
}

/** "7 days", "30 min", "90 s": the largest unit that says it exactly; below a second in milliseconds. */
export function durationText(ms: number): string {
  if (ms === 24 * 3_600_000) return "1 day";
  const units: [number, string][] = [
    [24 * 3_600_000, "days"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1_000, "s"],
  ];
  for (const [unitMs, unit] of units) if (ms >= unitMs && ms % unitMs === 0) return `${ms / unitMs} ${unit}`;
  return `${ms} ms`;
}

function hasLabels(have: Readonly<Record<string, string>>, want: Readonly<Record<string, string>>): boolean {
  return Object.entries(want).every(([key, value]) => Object.hasOwn(have, key) && have[key] === value);
}

function servesSelfHosted({ labels }: HandAgentRecord, { selfHostedId }: PlacementWish): boolean {
  const label = Object.hasOwn(labels, SELF_HOSTED_LABEL) ? labels[SELF_HOSTED_LABEL] : undefined;
  return selfHostedId === undefined || label === "true" || label === selfHostedId;
}

function driverOf(agent: HandAgentRecord, name: string): DriverRecord | undefined {
  return agent.drivers.find((driver) => driver.name === name && driver.available);
}

function labelText(labels: Readonly<Record<string, string>>): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(", ");
}

function whyNoDriver(name: string, agents: readonly HandAgentRecord[], where: string): string {
  const detail = agents
    .flatMap((agent) => agent.drivers)
    .find((driver) => driver.name === name && driver.detail !== "")?.detail;
  return `no online hand agent${where} has the driver "${name}"${detail === undefined ? "" : `: ${detail}`}`;
}

/** The tools a slot will have: those of the agent that would host it, else of any that could some day. */
export function toolsDigestFor(
  wish: PlacementWish,
  agents: readonly HandAgentRecord[],
  isReachable: (agent: HandAgentRecord) => boolean,
): string | undefined {
  const now = choosePlacement(wish, agents, isReachable);
  if (now.kind === "place") return now.driver.toolsDigest;
  const fitting = agents.filter(
    (agent) =>
      agent.pool === wish.pool && hasLabels(agent.labels, wish.labels) && servesSelfHosted(agent, wish),
  );
  for (const agent of fitting) {
    const driver = driverOf(agent, wish.driver);
    if (driver !== undefined) return driver.toolsDigest;
  }
  return undefined;
}

/** The call must be the one that the log has (X1); throws INVALID_FIELD otherwise. */
export function checkToolUse(
  use: ToolUseRecord,
  request: { executionId: string; name: string; slot: string; input: string },
): void {
  if (use.type !== "agent.tool_use") {
    throw invalidField("execution_id", `event "${request.executionId}" is ${use.type}, not agent.tool_use`);
  }
  refuseBrainCall(use.payload);
  const payload = JSON.parse(use.payload) as { name?: unknown; input?: unknown; hand?: unknown };
  if (payload.name !== request.name) {
    throw invalidField("name", `event "${request.executionId}" calls "${String(payload.name)}"`);
  }
  if ((payload.hand ?? "") !== request.slot) {
    throw invalidField(
      "slot",
      `event "${request.executionId}" names the hand "${String(payload.hand ?? "")}"`,
    );
  }
  if (!isDeepStrictEqual(payload.input ?? {}, parseInput(request.input))) {
    throw invalidField("input", `event "${request.executionId}" has another input`);
  }
}

/** INVALID_FIELD for a call that its brain runs itself, or the proxy: no hand may have it. */
export function refuseBrainCall(payload: string): void {
  const { runs_in: runsIn } = JSON.parse(payload) as { runs_in?: unknown };
  if (runsIn === "proxy") throw invalidField("execution_id", "names a call that the proxy runs, not a hand");
  if (runsIn !== "brain") return;
  throw invalidField("execution_id", "names a call that the brain runs itself, not a hand");
}

/** Comparing and writing values again takes stack for each level; no tool's input comes near it. */
const MAX_INPUT_DEPTH = 1_000;

/** INVALID_FIELD unless it is JSON text of one object, nested at most `MAX_INPUT_DEPTH` levels deep. */
export function parseInput(input: string): Record<string, unknown> {
  if (isDeeperThan(input, MAX_INPUT_DEPTH)) {
    throw invalidField("input", `is nested more than ${MAX_INPUT_DEPTH} levels deep`);
  }
  let value: unknown;
  try {
    value = JSON.parse(input);
  } catch {
    throw invalidField("input", "must be JSON text");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidField("input", "must be JSON text of one object");
  }
  return value as Record<string, unknown>;
}

/** Of JSON text; of other text it says anything. */
function isDeeperThan(text: string, limit: number): boolean {
  let depth = 0;
  let inString = false;
  if (text.length <= limit) return false;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (inString) {
      if (character === "\\") at += 1;
      else if (character === '"') inString = false;
    } else if (character === '"') inString = true;
    else if (character === "[" || character === "{") {
      depth += 1;
      if (depth > limit) return true;
    } else if (character === "]" || character === "}") depth -= 1;
  }
  return false;
}

/** The caller's limit, else the one that the call itself asks for, else the default. */
export function callTimeoutMs(requested: bigint, input: Readonly<Record<string, unknown>>): number {
  if (requested > 0n) return Number(requested);
  const asked = input.timeout_ms;
  const fits =
    typeof asked === "number" && Number.isInteger(asked) && asked > 0 && asked <= MAX_CALL_TIMEOUT_MS;
  return fits ? asked : DEFAULT_CALL_TIMEOUT_MS;
}

/** How hand agents name an execution. */
export function executionKey(owner: string, executionId: string): string {
  return `${owner}/${executionId}`;
}
