/** What hand agents call. */

import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { within } from "../../kit/clock.ts";
import { invalidField, isTendonError, messageOf, TendonError } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { hashSecret } from "../../kit/sign/secrets.ts";
import type {
  ConnectRequest,
  EnrollRequest,
  HandAgentGreeting,
  HandAgentService,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { principalOf } from "../ports/principal.ts";
import { AgentAdmission } from "./agent-admission.ts";
import { AgentConnection } from "./agent-connection.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { AgentTransfers } from "./agent-transfers.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionStreams } from "./execution-streams.ts";
import { greetingRecord, noteImages, noteMachine } from "./greeting-record.ts";
import { readSessionLog, syncMemory } from "./hand-mounts.ts";
import { offerOutputs, storeOutput } from "./hand-outputs.ts";
import { listHandFiles, readHandFile } from "./hand-uploads.ts";
import { chooseVersion } from "./protocol-version.ts";
import type { Reconciler } from "./reconcile.ts";
import { readResource } from "./stored-resources.ts";

/** Fewer than a pool has connections: calls go on while agents come. */
const TAKEN_IN_AT_ONCE = 6;

export interface HandAgentServiceParts {
  readonly connections: AgentConnections;
  readonly links: AgentLinks;
  readonly reconciler: Reconciler;
  readonly streams: ExecutionStreams;
  readonly transfers: AgentTransfers;
  /** Cuts the connection whose other end this is (`Listener.destroyPeer`): a half-open one does not end by itself. */
  readonly destroyPeer: (peer: string) => void;
}

export function createHandAgentService(
  deps: HandDeps,
  parts: HandAgentServiceParts,
): ServiceImplementation<typeof HandAgentService> {
  const admission = new AgentAdmission(TAKEN_IN_AT_ONCE);
  return {
    enroll: (request) => enroll(deps, request),
    connect: (requests, context) => connect(deps, { ...parts, admission }, requests, context),
    streamExecution: (requests, context) =>
      parts.streams.serve(requests, agentOf(context).handAgentId, context),
    streamTransfer: (requests, context) =>
      parts.transfers.serve(requests, agentOf(context).handAgentId, context),
    readResource: (request, context) => readResource(deps, request, agentOf(context).handAgentId),
    syncMemory: (request, context) => syncMemory(deps, request, agentOf(context).handAgentId),
    readSessionLog: (request, context) => readSessionLog(deps, request, agentOf(context).handAgentId),
    listHandFiles: (request, context) => listHandFiles(deps, request, agentOf(context).handAgentId),
    readHandFile: (request, context) => readHandFile(deps, request, agentOf(context).handAgentId),
    offerOutputs: (request, context) => offerOutputs(deps, request, agentOf(context).handAgentId),
    storeOutput: (requests, context) => storeOutput(deps, requests, agentOf(context).handAgentId),
    streamTunnel: (requests, context) =>
      deps.tunnels().fromAgent(requests, agentOf(context).handAgentId, context),
  };
}

/** How join tokens are stored. */
export function hashJoinToken(token: string): Uint8Array {
  return Buffer.from(hashSecret(token), "hex");
}

async function enroll(deps: HandDeps, request: EnrollRequest) {
  checkLabels(request.labels);
  return deps.store.handAgents.enroll({
    tokenHash: hashJoinToken(request.joinToken),
    publicKey: request.publicKey,
    name: request.name,
    labels: request.labels,
  });
}

type ConnectParts = HandAgentServiceParts & { readonly admission: AgentAdmission };

/** Nothing of the greeting is kept for as long as the connection stands: it may be large, and there are many agents. */
async function* connect(
  deps: HandDeps,
  parts: ConnectParts,
  requests: AsyncIterable<ConnectRequest>,
  context: RpcContext,
) {
  const connection = await takeIn(deps, parts, requests, context);
  const { handAgentId, generation } = connection;
  try {
    yield* connection.outbox;
  } finally {
    await leave(deps, parts, connection);
    deps.logger.info({ handAgentId, generation }, "a hand agent's connection ended");
  }
}

/** From the greeting to a connection that stands; the welcome is its first message. */
async function takeIn(
  deps: HandDeps,
  parts: ConnectParts,
  requests: AsyncIterable<ConnectRequest>,
  context: RpcContext,
): Promise<AgentConnection> {
  const { handAgentId, workspaceId } = agentOf(context);
  parts.connections.assertTakesAgents();
  const iterator = requests[Symbol.asyncIterator]();
  const greeting = await readGreeting(deps, iterator);
  const stored = await admit(deps, parts, handAgentId, greeting, context.signal);
  const facts = { handAgentId, workspaceId, generation: stored.generation };
  const journalled = greeting.executions.map(({ executionKey }) => executionKey);
  const connection = connectionOf(deps, parts, context, { facts, journalId: greeting.journalId, journalled });
  try {
    context.signal.throwIfAborted();
    connection.post({ case: "welcome", value: welcome(deps, greeting, stored) });
    if (!parts.connections.add(connection)) {
      throw new TendonError("UNAVAILABLE", "a newer connection of this hand agent stands");
    }
  } catch (error) {
    await leave(deps, parts, connection);
    throw error;
  }
  deps.logger.info(facts, "a hand agent connected");
  context.signal.addEventListener("abort", () => connection.end(), { once: true });
  connection.read(iterator).catch((error: unknown) => {
    connection.end(error instanceof TendonError ? error : new TendonError("UNAVAILABLE", messageOf(error)));
  });
  parts.reconciler.greet(connection, greeting).catch((error: unknown) => {
    deps.logger.error({ ...facts, error: messageOf(error) }, "what a hand agent has could not be compared");
    connection.end(
      new TendonError("UNAVAILABLE", "the server could not compare what the agent has; connect again"),
    );
  });
  return connection;
}

function admit(
  deps: HandDeps,
  parts: ConnectParts,
  handAgentId: string,
  greeting: HandAgentGreeting,
  signal: AbortSignal,
): Promise<{ generation: number; installationId: string }> {
  const { superseded: yields } = greeting;
  const record = { handAgentId, replicaId: deps.replicaId, greeting: greetingRecord(greeting), yields };
  const admitted = parts.admission.run(signal, () => deps.store.handAgents.connect(record));
  return admitted.catch((error: unknown) => {
    if (isTendonError(error, "HAND_AGENT_DUPLICATED")) tellOfDuplicate(deps, parts.links, handAgentId);
    throw error;
  });
}

interface ConnectionFacts {
  readonly facts: { readonly handAgentId: string; readonly generation: number };
  readonly journalId: string;
  readonly journalled: Iterable<string>;
}

function connectionOf(
  deps: HandDeps,
  parts: ConnectParts,
  context: RpcContext,
  { facts, journalId, journalled }: ConnectionFacts,
): AgentConnection {
  const { handAgentId, generation } = facts;
  return new AgentConnection({
    handAgentId,
    generation,
    journalId,
    journalled,
    clock: deps.clock,
    timing: deps.timing,
    onReport: (report) => parts.reconciler.report(handAgentId, report),
    onDraining: () => parts.connections.changed(),
    onResources: (resources) => noteMachine(deps, facts, resources),
    onImages: (changed) => noteImages(deps, facts, changed),
    transfers: parts.transfers,
    cut: (error) => {
      context.fail(error);
      parts.destroyPeer(context.peer);
    },
  });
}

async function leave(deps: HandDeps, parts: ConnectParts, connection: AgentConnection): Promise<void> {
  const { handAgentId, generation } = connection;
  connection.end();
  parts.connections.remove(connection);
  await deps.store.handAgents.disconnect({ handAgentId, generation }).catch((error: unknown) => {
    // Without a sign of life the row counts as offline soon anyway.
    deps.logger.warn(
      { handAgentId, generation, error: messageOf(error) },
      "a disconnect could not be stored",
    );
  });
}

/** To those who can do something: in the log, the audit log, and to the process that is connected. None of it is waited for. */
function tellOfDuplicate(deps: HandDeps, links: AgentLinks, handAgentId: string): void {
  deps.logger.warn(
    { handAgentId },
    "two processes use the identity of one hand agent; the older one is refused",
  );
  const failed = (error: unknown) =>
    deps.logger.warn({ handAgentId, error: messageOf(error) }, "a copy of a hand agent was not told of");
  links.locate(handAgentId).then((link) => link?.post({ case: "identityShared", value: {} }), failed);
  deps.store.handAgents.noteDuplicate(handAgentId).catch(failed);
}

async function readGreeting(
  deps: HandDeps,
  iterator: AsyncIterator<ConnectRequest>,
): Promise<HandAgentGreeting> {
  const first = await within(
    deps.clock,
    deps.timing.greetingTimeoutMs,
    iterator.next(),
    () => new TendonError("DEADLINE_EXCEEDED", "no greeting came"),
  );
  const kind = first.done ? undefined : first.value.kind;
  if (kind?.case !== "greeting") throw invalidField("greeting", "must be the first message");
  refuseNul(kind.value, "greeting");
  chooseVersion(kind.value);
  checkLabels(kind.value.labels);
  return kind.value;
}

function welcome(
  deps: HandDeps,
  greeting: HandAgentGreeting,
  stored: { generation: number; installationId: string },
) {
  return {
    generation: BigInt(stored.generation),
    replicaId: deps.replicaId,
    installationId: stored.installationId,
    heartbeatEvery: durationFromMs(deps.timing.heartbeatEveryMs),
    heartbeatTimeout: durationFromMs(deps.timing.heartbeatTimeoutMs),
    protocolVersion: chooseVersion(greeting),
  };
}

function agentOf(context: RpcContext) {
  const principal = principalOf(context);
  if (principal.kind !== "hand_agent") {
    throw new TendonError("ROLE_NOT_ALLOWED", `${principal.kind} is not a hand agent`);
  }
  return principal;
}

const MAX_LABEL_CHARS = 256;

function checkLabels(labels: Readonly<Record<string, string>>): void {
  for (const [key, value] of Object.entries(labels)) {
    if (key === "" || key.length > MAX_LABEL_CHARS || value.length > MAX_LABEL_CHARS) {
      throw invalidField("labels", `keys have 1 to ${MAX_LABEL_CHARS} characters, values at most as many`);
    }
  }
}
