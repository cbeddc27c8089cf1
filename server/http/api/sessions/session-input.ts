/** What existing clients say of a new session (pure). Throws INVALID_FIELD with the path in their words. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import { elementsOf, memberText } from "../../../../kit/json-slices.ts";
import { type Budget, BudgetSchema } from "../../../../proto/gen/tendon/v1/session_pb.js";
import type { CreateSessionRequestSchema } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import { eventInput } from "../events/event-input.ts";
import { type Fields, fieldsOf } from "../fields.ts";
import { newMetadata } from "../metadata.ts";
import type { RequestBody } from "../request-body.ts";
import { resourceInput } from "./resource-input.ts";

const INITIAL_TYPES = new Set(["user.message", "user.define_outcome"]);
const MAX_CENTS = 1_000_000_000_000;

type CreateSession = Extract<MessageInitShape<typeof CreateSessionRequestSchema>, { $typeName?: never }>;

/** All but the agent. */
export function newSessionRequest({ fields, text }: RequestBody): CreateSession {
  fields.only(
    "agent",
    "environment_id",
    "title",
    "metadata",
    "vault_ids",
    "resources",
    "initial_events",
    "budget",
  );
  const budget = fields.object("budget");
  return {
    environmentId: fields.text("environment_id") ?? "",
    title: fields.text("title") ?? "",
    metadata: newMetadata(fields),
    vaultIds: [...(fields.texts("vault_ids") ?? [])],
    resources: (fields.objects("resources") ?? []).map(resourceInput),
    initialEvents: initialEventsOf(text, fields),
    ...(budget && { budget: budgetOf(budget) }),
  };
}

/** An agent that a session is made of, and what is different in this session alone. */
export interface AgentChoice {
  readonly agentId: string;
  /** 0 for the newest. */
  readonly agentVersion: number;
  readonly overrides: Fields | undefined;
}

export function agentChoice(fields: Fields): AgentChoice {
  const said = fields.value.agent;
  if (typeof said === "string" && said !== "") {
    return { agentId: said, agentVersion: 0, overrides: undefined };
  }
  if (said === undefined || said === null || said === "") throw invalidField("agent", "is required");
  const agent = fieldsOf(said, "agent");
  const type = agent.word("type", ["agent", "agent_with_overrides"]);
  if (type === "agent_with_overrides") {
    agent.only("type", "id", "version", "model", "system", "tools", "mcp_servers", "skills");
  } else agent.only("type", "id", "version");
  return {
    agentId: agent.requiredText("id"),
    agentVersion: agent.count("version") ?? 0,
    overrides: type === "agent_with_overrides" ? agent : undefined,
  };
}

function initialEventsOf(text: string, fields: Fields): NonNullable<CreateSession["initialEvents"]> {
  const events = fields.objects("initial_events") ?? [];
  for (const event of events) {
    const type = event.requiredText("type");
    if (!INITIAL_TYPES.has(type))
      throw invalidField(event.at("type"), `must be ${[...INITIAL_TYPES].join(" or ")}`);
  }
  if (events.length === 0) return [];
  const texts = elementsOf(memberText(text, "initial_events") ?? "[]");
  return events.map((event, at) => eventInput(event, texts[at]!));
}

/** Limits beside that of list price are our own. */
export function budgetOf(fields: Fields): Budget {
  fields.only("type", "max_list_cost", "max_tokens", "max_turns", "max_wall_clock_ms");
  fields.word("type", ["limit"]);
  const cost = fields.object("max_list_cost");
  cost?.only("amount", "currency");
  cost?.word("currency", ["USD"]);
  const count = (name: string) => {
    const value = fields.integer(name) ?? 0;
    if (value < 0) throw invalidField(fields.at(name), "must not be negative");
    return BigInt(value);
  };
  return create(BudgetSchema, {
    maxListCostCents: cost === undefined ? 0n : centsOf(cost),
    maxTokens: count("max_tokens"),
    maxTurns: count("max_turns"),
    maxWallClockMs: count("max_wall_clock_ms"),
  });
}

function centsOf(cost: Fields): bigint {
  const amount = cost.requiredText("amount");
  const isAmount = /^[1-9]\d{0,12}$/.test(amount) && Number(amount) <= MAX_CENTS;
  if (!isAmount) throw invalidField(cost.at("amount"), "must be a whole number of cents, as a string");
  return BigInt(amount);
}
