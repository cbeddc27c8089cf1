/** What existing clients say of a deployment (pure). Throws INVALID_FIELD with the path in their words. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import { elementsOf, memberText } from "../../../../kit/json-slices.ts";
import type { DeploymentSpecSchema } from "../../../../proto/gen/tendon/v1/deployment_pb.js";
import { eventInput } from "../events/event-input.ts";
import type { Fields } from "../fields.ts";
import { metadataPatch, newMetadata } from "../metadata.ts";
import type { RequestBody } from "../request-body.ts";
import { resourceInput } from "../sessions/resource-input.ts";
import { agentChoice, budgetOf } from "../sessions/session-input.ts";

type Spec = Extract<MessageInitShape<typeof DeploymentSpecSchema>, { $typeName?: never }>;

const INITIAL_TYPES = ["user.message", "user.define_outcome", "system.message"];

/** A field as it is said, and the names that it has in the contract. */
interface Part {
  readonly paths: readonly string[];
  read(body: RequestBody): Spec;
}

const PARTS: Readonly<Record<string, Part>> = {
  name: { paths: ["name"], read: ({ fields }) => ({ name: fields.requiredText("name") }) },
  description: {
    paths: ["description"],
    read: ({ fields }) => ({ description: fields.text("description") ?? "" }),
  },
  agent: { paths: ["agent_id", "agent_version"], read: ({ fields }) => agentOf(fields) },
  environment_id: {
    paths: ["environment_id"],
    read: ({ fields }) => ({ environmentId: fields.requiredText("environment_id") }),
  },
  initial_events: {
    paths: ["initial_events"],
    read: (body) => ({ initialEvents: initialEventsOf(body) }),
  },
  resources: {
    paths: ["resources"],
    read: ({ fields }) => ({ resources: (fields.objects("resources") ?? []).map(resourceInput) }),
  },
  vault_ids: {
    paths: ["vault_ids"],
    read: ({ fields }) => ({ vaultIds: [...(fields.texts("vault_ids") ?? [])] }),
  },
  budget: {
    paths: ["budget"],
    read({ fields }) {
      const budget = fields.object("budget");
      return budget === undefined ? {} : { budget: budgetOf(budget) };
    },
  },
  metadata: { paths: ["metadata"], read: ({ fields }) => ({ metadata: metadataPatch(fields) }) },
  schedule: { paths: ["schedule"], read: ({ fields }) => scheduleOf(fields) },
};

const NEEDED = ["name", "agent", "environment_id", "initial_events"];

export function newDeployment(body: RequestBody): Spec {
  body.fields.only(...Object.keys(PARTS));
  const said = Object.keys(PARTS).filter((name) => NEEDED.includes(name) || body.fields.has(name));
  return { ...specOf(body, said), metadata: newMetadata(body.fields) };
}

/** What is said is replaced, the rest stays. */
export function changedDeployment(body: RequestBody) {
  body.fields.only(...Object.keys(PARTS));
  const said = Object.keys(PARTS).filter((name) => body.fields.has(name));
  return { spec: specOf(body, said), updateMask: { paths: said.flatMap((name) => PARTS[name]!.paths) } };
}

function specOf(body: RequestBody, names: readonly string[]): Spec {
  return Object.assign({}, ...names.map((name) => PARTS[name]!.read(body)));
}

/** Overrides are for sessions: a deployment runs a version as it is. */
function agentOf(fields: Fields): Spec {
  const { agentId, agentVersion, overrides } = agentChoice(fields);
  if (overrides !== undefined) throw invalidField("agent.type", "must be agent");
  return { agentId, agentVersion };
}

function initialEventsOf({ fields, text }: RequestBody): NonNullable<Spec["initialEvents"]> {
  const events = fields.objects("initial_events") ?? [];
  if (events.length === 0) throw invalidField("initial_events", "must hold at least one event");
  for (const event of events) {
    if (!INITIAL_TYPES.includes(event.requiredText("type")))
      throw invalidField(event.at("type"), `must be ${INITIAL_TYPES.join(", ")}`);
  }
  const texts = elementsOf(memberText(text, "initial_events") ?? "[]");
  return events.map((event, at) => eventInput(event, texts[at]!));
}

function scheduleOf(fields: Fields): Spec {
  const schedule = fields.object("schedule");
  if (schedule === undefined) return {};
  schedule.only("type", "expression", "timezone");
  if (schedule.word("type", ["cron"]) === undefined) throw invalidField("schedule.type", "is required");
  const expression = schedule.requiredText("expression");
  return { schedule: { expression, timeZone: schedule.requiredText("timezone") } };
}
