/** What a new session is made of: the agent as it is now, and environments that may be used. */
import { clone, create, toJsonString } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import type { Clock } from "../../kit/clock.ts";
import { invalidField, isTendonError, notFound, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { type Agent, AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Environment } from "../../proto/gen/tendon/v1/environment_pb.js";
import {
  type Budget,
  BudgetSchema,
  type SessionResource,
  SessionResourceSchema,
} from "../../proto/gen/tendon/v1/session_pb.js";
import {
  type CreateSessionRequest,
  CreateSessionRequestSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { AgentRules } from "../ports/agent-rules.ts";
import type { FileAttachments } from "../ports/files.ts";
import type { MemoryAttachments } from "../ports/memory.ts";
import { actorOf, type Principal } from "../ports/principal.ts";
import type { SecretSealing } from "../ports/secret-sealing.ts";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import type { CredentialStore } from "../store/credentials.ts";
import type { EnvironmentStore } from "../store/environments.ts";
import { SCOPES } from "../store/request-ids.ts";
import type { NewSession } from "../store/sessions.ts";
import type { VaultStore } from "../store/vaults.ts";
import type { GivenFiles } from "./given-files.ts";
import { withRubrics } from "./outcome-definitions.ts";
import { attachRepositories } from "./repositories.ts";
import { ownVaultOf } from "./repository-tokens.ts";
import { fileResource, resourcesText } from "./resources.ts";
import { checkEmit } from "./rules.ts";
import { checkVariables } from "./variable-check.ts";
import { checkVaults } from "./vault-check.ts";

export interface CreationDeps {
  readonly clock: Clock;
  readonly agentRules: AgentRules;
  readonly agents: Pick<AgentStore, "find">;
  readonly environments: Pick<EnvironmentStore, "find" | "findDefault">;
  readonly files: FileAttachments;
  readonly memory: MemoryAttachments;
  readonly skills: Pick<AgentSkills, "resolve" | "pinMembers">;
  readonly sealing: SecretSealing;
  readonly vaults: Pick<VaultStore, "findAll">;
  readonly credentials: Pick<CredentialStore, "variableNames">;
}

/**
 * NOT_FOUND, AGENT_ARCHIVED, ENVIRONMENT_ARCHIVED, VAULT_ARCHIVED, INVALID_FIELD, EVENT_TYPE_NOT_ALLOWED, MESSAGE_TOO_LARGE,
 * UNAVAILABLE, NOT_CONFIGURED without a default environment, or for a token while no proxy has published a key. `givenFiles`
 * are closed by the caller, once the session is made.
 */
export async function newSession(
  deps: CreationDeps,
  request: CreateSessionRequest,
  principal: Principal,
  workspaceId: string,
  givenFiles: GivenFiles,
): Promise<NewSession> {
  checkTexts(request);
  const checked = checkEmit(principal, request.initialEvents, undefined, "initial_events").events;
  const place = { workspaceId, sessionId: "" };
  const judged = await withRubrics(deps.files, checked, place, "initial_events");
  const events = await givenFiles.beside(judged, workspaceId, "initial_events");
  const agent = await agentOf(deps, request, workspaceId);
  const environments = await environmentsOf(deps, agent, request, workspaceId);
  await checkVaults(deps.vaults, request.vaultIds, workspaceId);
  await checkVariables(deps, { vaultIds: request.vaultIds, workspaceId }, { agent, ...environments });
  const given = await givenResources(deps, request, workspaceId, environments);
  const whose = { workspaceId, actor: actorOf(principal) };
  return {
    sessionId: newId("session"),
    workspaceId,
    agentId: agent.id,
    agentVersion: agent.version,
    agent: toJsonString(AgentSchema, agent),
    ...environments,
    title: request.title,
    metadata: { ...request.metadata },
    vaultIds: request.vaultIds,
    budget: budgetText(request.budget),
    ...given,
    ownVault: await ownVaultOf(deps.sealing, request.resources, whose),
    events,
    request: { requestId: request.requestId, contentHash: hashOf(request) },
  };
}

/** In the order in which they were asked for. */
async function givenResources(
  { memory, files, clock }: Pick<CreationDeps, "memory" | "files" | "clock">,
  { resources }: CreateSessionRequest,
  workspaceId: string,
  { slotEnvironmentIds }: Pick<NewSession, "slotEnvironmentIds">,
): Promise<Pick<NewSession, "resources" | "memoryStoreIds" | "files">> {
  const storeInputs = resources.flatMap(({ kind }, index) =>
    kind.case === "memoryStore" ? [{ store: kind.value, field: `resources[${index}].memory_store` }] : [],
  );
  const fileInputs = resources.flatMap(({ kind }, index) =>
    kind.case === "file" ? [{ file: kind.value, field: `resources[${index}].file` }] : [],
  );
  const stores = await memory.attach(storeInputs, workspaceId);
  const attachments = await files.attach(fileInputs, workspaceId);
  const repositories = attachRepositories(resources, Object.keys(slotEnvironmentIds));
  const left = { stores: stores.values(), files: attachments.values() };
  const messages = resources.flatMap(({ kind }, index): SessionResource[] => {
    if (kind.case === "file") return [fileResource(left.files.next().value!, clock.nowMs())];
    if (kind.case === "gitRepository") return [create(SessionResourceSchema, repositories.get(index))];
    if (kind.case !== "memoryStore") return [];
    const value = left.stores.next().value!;
    return [create(SessionResourceSchema, { kind: { case: "memoryStore", value } })];
  });
  return {
    resources: resourcesText(messages),
    memoryStoreIds: stores.map(({ memoryStoreId }) => memoryStoreId),
    files: attachments.map(({ copy }) => copy),
  };
}

/** By slot: what the session says, else what its agent says, else the environment of the default slot. */
async function environmentsOf(
  deps: CreationDeps,
  agent: Agent,
  request: CreateSessionRequest,
  workspaceId: string,
): Promise<Pick<NewSession, "environmentId" | "slotEnvironmentIds">> {
  const ofAgent = new Map(
    (agent.spec?.tools ?? []).flatMap(({ kind }): [string, string][] =>
      kind.case === "handToolset" ? [[kind.value.slot, kind.value.environmentId]] : [],
    ),
  );
  const environmentId = await findEnvironment(
    deps,
    request.environmentId || (ofAgent.get("") ?? ""),
    workspaceId,
  );
  const slotEnvironmentIds: Record<string, string> = {};
  for (const [slot, id] of Object.entries(request.slotEnvironmentIds)) {
    if (slot.includes("__") || slot === "mcp") {
      throw invalidField(`slot_environment_ids["${slot}"]`, 'a slot\'s name has no "__" and is not "mcp"');
    }
    slotEnvironmentIds[slot] = (await usable(deps, id, workspaceId)).id;
  }
  for (const [slot, id] of ofAgent) {
    if (slot === "" || Object.hasOwn(slotEnvironmentIds, slot)) continue;
    slotEnvironmentIds[slot] = id === "" ? environmentId : (await usable(deps, id, workspaceId)).id;
  }
  return { environmentId, slotEnvironmentIds };
}

/** JSON text of a budget; `{}` for none. */
export function budgetText(budget: Budget | undefined): string {
  return budget ? toJsonString(BudgetSchema, budget) : "{}";
}

/** Postgres keeps no NUL in a text. */
export function checkTexts({
  requestId,
  title,
  metadata,
  vaultIds,
}: {
  requestId?: string;
  title?: string | undefined;
  metadata?: Readonly<Record<string, string>>;
  vaultIds?: readonly string[];
}): void {
  refuseNul(requestId, "request_id");
  refuseNul(title, "title");
  refuseNul(metadata, "metadata");
  refuseNul(vaultIds, "vault_ids");
}

/** By which a repeat is told. */
export function creationClaim(request: CreateSessionRequest, workspaceId: string) {
  const { requestId } = request;
  return { workspaceId, scope: SCOPES.session, requestId, contentHash: hashOf(request) };
}

/** A hash of a token would let whoever has the database guess it: repeats are told by all the rest. */
function hashOf(request: CreateSessionRequest): Buffer {
  const rest = clone(CreateSessionRequestSchema, request);
  rest.requestId = "";
  for (const { kind } of rest.resources)
    if (kind.case === "gitRepository") kind.value.authorizationToken = "";
  return contentHash(CreateSessionRequestSchema, rest);
}

/** As the session keeps it: with the versions that its skills have now. */
async function agentOf(
  deps: CreationDeps,
  request: CreateSessionRequest,
  workspaceId: string,
): Promise<Agent> {
  const agent = await findAgent(deps, request, workspaceId);
  if (agent.spec === undefined) return agent;
  return { ...agent, spec: await deps.skills.resolve(agent.spec, workspaceId) };
}

async function findAgent(
  deps: CreationDeps,
  request: CreateSessionRequest,
  workspaceId: string,
): Promise<Agent> {
  const { agentId, agentVersion, agentSpec } = request;
  const agent = agentId.includes("\0") ? undefined : await deps.agents.find(agentId, agentVersion);
  if (!agent || agent.workspaceId !== workspaceId) throw notFound("agent", agentId);
  if (agent.archivedAt) {
    throw new TendonError("AGENT_ARCHIVED", `the agent "${agentId}" is archived`, { agent_id: agentId });
  }
  if (agentSpec === undefined) return agent;
  await inFieldOfTheRequest(() => deps.agentRules.check(agentSpec, workspaceId));
  return { ...agent, spec: agentSpec };
}

/** The rules speak of an agent's `spec`. */
async function inFieldOfTheRequest(check: () => Promise<void>): Promise<void> {
  try {
    await check();
  } catch (error) {
    if (!isTendonError(error, "INVALID_FIELD")) throw error;
    const { field = "" } = error.metadata;
    throw invalidField(field.replace(/^spec\b/, "agent_spec"), error.message.slice(`${field}: `.length));
  }
}

export async function findEnvironment(deps: CreationDeps, id: string, workspaceId: string): Promise<string> {
  if (id !== "") return (await usable(deps, id, workspaceId)).id;
  const environment = await deps.environments.findDefault(workspaceId);
  if (!environment) {
    throw new TendonError(
      "NOT_CONFIGURED",
      "environment_id: the workspace has no default environment; name one, or make one the default",
      { field: "environment_id" },
    );
  }
  return environment.id;
}

async function usable(deps: CreationDeps, id: string, workspaceId: string): Promise<Environment> {
  const environment = id.includes("\0") ? undefined : await deps.environments.find(id);
  if (!environment || environment.workspaceId !== workspaceId) throw notFound("environment", id);
  if (environment.archivedAt) {
    throw new TendonError("ENVIRONMENT_ARCHIVED", `the environment "${id}" is archived`, {
      environment_id: id,
    });
  }
  return environment;
}
