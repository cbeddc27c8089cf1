/** What deployments are made of, as options: those of their sessions, and when these are made. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Command, InvalidArgumentError } from "commander";
import { StartupError } from "../kit/program.ts";
import type { DeploymentSpecSchema } from "../proto/gen/tendon/v1/deployment_pb.js";
import { EventInputSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { EXIT_USAGE } from "./command.ts";
import type { Api } from "./connect.ts";
import { addOutcomeOptions, type OutcomeOptions, outcomeOf } from "./outcome-options.ts";
import {
  addSessionPartsOptions,
  givenSessionParts,
  type SessionPartsOptions,
} from "./session-parts-options.ts";
import { parseRepeated } from "./words.ts";

export interface DeploymentOptions extends SessionPartsOptions, OutcomeOptions {
  name?: string;
  description?: string;
  message?: string[];
  system?: string;
  cron?: string;
  timeZone?: string;
}

type Spec = Extract<MessageInitShape<typeof DeploymentSpecSchema>, { $typeName?: never }>;

export const CLEARED = ["description", "schedule", "vaults", "resources", "budget"] as const;
export type Cleared = (typeof CLEARED)[number];

export function addDeploymentOptions(command: Command): Command {
  const first = addSessionPartsOptions(command)
    .option("--name <name>", "for people; also the title of its sessions")
    .option("--message <text>", "first message of each session; may be given several times", parseRepeated);
  return addOutcomeOptions(first, "after the messages; one of both is needed")
    .option("--system <text>", "what each session is told by its operator, behind the first message")
    .option("--cron <expression>", 'when, such as "0 9 * * 1-5"; left out: only when told')
    .option("--time-zone <zone>", "whose clock that is, such as Europe/Berlin; goes with --cron")
    .option("--description <text>", "what it does");
}

/** Without ids: these are each session's own. Empty where neither a message nor an outcome is given. */
export function initialEventsOf(options: DeploymentOptions): MessageInitShape<typeof EventInputSchema>[] {
  const { message = [], system } = options;
  const outcome = outcomeOf(options);
  if (message.length === 0 && outcome === undefined) return [];
  const event = (type: string, text: string) =>
    create(EventInputSchema, { type, payload: JSON.stringify({ content: [{ type: "text", text }] }) });
  const [first, ...others] = message.map((text) => event("user.message", text));
  return [
    ...(first === undefined ? [] : [first]),
    ...(system === undefined ? [] : [event("system.message", system)]),
    ...others,
    ...(outcome === undefined ? [] : [{ ...outcome, id: "" }]),
  ];
}

export function scheduleOf({ cron, timeZone }: DeploymentOptions) {
  if ((cron === undefined) !== (timeZone === undefined))
    throw new StartupError("--cron and --time-zone go together", EXIT_USAGE);
  return cron === undefined ? undefined : { expression: cron, timeZone: timeZone ?? "" };
}

/** Collects an option that may be given several times. */
export function parseCleared(text: string, before: readonly Cleared[] | undefined): Cleared[] {
  const part = CLEARED.find((known) => known === text);
  if (part === undefined) throw new InvalidArgumentError(`It must be one of ${CLEARED.join(", ")}.`);
  return [...(before ?? []), part];
}

const CLEARED_FIELDS: Readonly<Record<Cleared, string>> = {
  description: "description",
  schedule: "schedule",
  vaults: "vault_ids",
  resources: "resources",
  budget: "budget",
};

/** What an update asks for: the fields that were given, and those that are cleared. */
export async function deploymentChange(api: Api, options: DeploymentOptions, cleared: readonly Cleared[]) {
  const { name, description, system } = options;
  const initialEvents = initialEventsOf(options);
  if (system !== undefined && initialEvents.length === 0)
    throw new StartupError(
      "--system goes with --message or --outcome: first events are replaced together",
      EXIT_USAGE,
    );
  const schedule = scheduleOf(options);
  const given: Record<string, Spec> = {
    ...(await givenSessionParts(api, options)),
    ...(name !== undefined && { name: { name } }),
    ...(description !== undefined && { description: { description } }),
    ...(initialEvents.length > 0 && { initial_events: { initialEvents } }),
    ...(schedule && { schedule: { schedule } }),
  };
  const fields = cleared.map((part) => CLEARED_FIELDS[part]);
  const both = cleared.find((part) => CLEARED_FIELDS[part] in given);
  if (both !== undefined)
    throw new StartupError(`--clear ${both} does not go with options that set it`, EXIT_USAGE);
  const paths = [...new Set([...Object.keys(given), ...fields])];
  if (paths.length === 0) throw new StartupError("nothing is to be changed", EXIT_USAGE);
  return { spec: Object.assign({}, ...Object.values(given)) as Spec, updateMask: { paths } };
}
