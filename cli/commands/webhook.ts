/** `tendon webhook`: where the workspace's events are sent. */
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { type Command, Option } from "commander";
import { StartupError } from "../../kit/program.ts";
import {
  CreateWebhookEndpointResponseSchema,
  ListWebhookEndpointsResponseSchema,
  ReplayWebhookDeliveriesResponseSchema,
  RotateWebhookSecretResponseSchema,
  type WebhookDeliveryState,
  WebhookDeliveryStateSchema,
  type WebhookEndpoint,
  WebhookEndpointSchema,
  WebhookState,
  WebhookStateSchema,
} from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { CALL_WITHIN, EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import { withSecretFile } from "../secret-file.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, enumWords, parseDuration, parseEnum, parseList, parseTime, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";
import { addDeliveryList } from "./webhook-deliveries.ts";

interface EndpointOptions {
  url?: string;
  events?: string[];
  name?: string;
  description?: string;
  out?: string;
  requestId?: string;
}

const WEEK_MS = 7 * 86_400_000;
const KEEP_IT = "Keep it now: it is not shown again.";

export function addWebhookCommands(program: Command): void {
  const webhook = program
    .command("webhook")
    .description("tells programs elsewhere, by HTTP, what happens here");
  webhook.addHelpText(
    "after",
    `
Examples:
  tendon webhook create https://hooks.example.com/tendon --events session.status_idled,session.requires_action
  tendon webhook deliveries whep_01… --state dead
  tendon webhook replay whep_01… --since 24h
  tendon webhook rotate-secret whep_01… --overlap 2h`,
  );
  addCreate(webhook);
  const list = addPageOptions(webhook.command("list").description("list endpoints"));
  onAction<PageOptions>(list, async ({ options, api, output }) => {
    const page = await api.webhooks.listWebhookEndpoints(pageOf(options), CALL_WITHIN);
    const text = () => endpointTable(page.endpoints) + nextPageNote(page);
    output.message(ListWebhookEndpointsResponseSchema, page, text);
  });
  const get = webhook.command("get <endpoint>").description("show an endpoint, without its secret");
  onAction(get, async ({ args, api, output }) => {
    const { endpoint } = await api.webhooks.getWebhookEndpoint({ endpointId: String(args[0]) }, CALL_WITHIN);
    output.message(WebhookEndpointSchema, endpoint!, () => endpointText(endpoint!));
  });
  addUpdate(webhook);
  addState(webhook, "enable", WebhookState.ENABLED, "send what waits, and tell it what happens from now on");
  addState(webhook, "disable", WebhookState.DISABLED, "tell it nothing more; what waits goes on waiting");
  const remove = webhook.command("delete <endpoint>").description("erase an endpoint with its deliveries");
  onAction(remove, async ({ args, api, output }) => {
    const endpointId = String(args[0]);
    await api.webhooks.deleteWebhookEndpoint({ endpointId }, CALL_WITHIN);
    output.value({ deleted: endpointId }, () => `${endpointId} is deleted.`);
  });
  addRotate(webhook);
  addDeliveryList(webhook);
  addReplay(webhook);
}

function addCreate(webhook: Command): void {
  const command = webhook
    .command("create <url>")
    .description("make an endpoint; its signing secret is shown this once")
    .requiredOption("--events <types>", "what it is told, separated by commas; * for all", parseList)
    .option("--name <name>", "name for people")
    .option("--description <text>", "notes for people")
    .option("--out <file>", "write the secret to this new file, with mode 0600, instead of showing it")
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<EndpointOptions>(command, async ({ options, args, api, output }) => {
    const { events = [], name = "", description = "", requestId = "" } = options;
    const request = { requestId, url: String(args[0]), enabledEvents: events, name, description };
    const make = () => api.webhooks.createWebhookEndpoint(request, CALL_WITHIN);
    const answer = await toFile(options.out, make);
    const text = () => endpointText(answer.endpoint!) + secretNote(answer.signingSecret, options.out);
    output.message(CreateWebhookEndpointResponseSchema, answer, text);
  });
}

function addUpdate(webhook: Command): void {
  const command = webhook
    .command("update <endpoint>")
    .description("change an endpoint; what is left out stays")
    .option("--url <url>", "where requests go")
    .option("--events <types>", "what it is told, separated by commas; * for all", parseList)
    .option("--name <name>", "name for people")
    .option("--description <text>", "notes for people");
  onAction<EndpointOptions>(command, async ({ options, args, api, output }) => {
    const { url, events = [], name, description } = options;
    const request = {
      endpointId: String(args[0]),
      enabledEvents: events,
      ...(url !== undefined && { url }),
      ...(name !== undefined && { name }),
      ...(description !== undefined && { description }),
    };
    const { endpoint } = await api.webhooks.updateWebhookEndpoint(request, CALL_WITHIN);
    output.message(WebhookEndpointSchema, endpoint!, () => endpointText(endpoint!));
  });
}

function addState(webhook: Command, verb: string, state: WebhookState, description: string): void {
  const command = webhook.command(`${verb} <endpoint>`).description(description);
  onAction(command, async ({ args, api, output }) => {
    const request = { endpointId: String(args[0]), state };
    const { endpoint } = await api.webhooks.updateWebhookEndpoint(request, CALL_WITHIN);
    output.message(WebhookEndpointSchema, endpoint!, () => endpointText(endpoint!));
  });
}

function addRotate(webhook: Command): void {
  const command = webhook
    .command("rotate-secret <endpoint>")
    .description("make a new signing secret; it is shown this once")
    .option("--overlap <duration>", "how long older secrets sign too; left out: 24h", parseDuration(WEEK_MS))
    .option("--at-once", "older secrets end now")
    .option("--out <file>", "write the secret to this new file, with mode 0600, instead of showing it");
  type Options = { overlap?: number; atOnce?: boolean; out?: string };
  onAction<Options>(command, async ({ options, args, api, output }) => {
    const { atOnce = false, out } = options;
    if (atOnce && options.overlap !== undefined)
      throw new StartupError("give either --overlap or --at-once", EXIT_USAGE);
    const overlapMs = atOnce ? 0 : options.overlap;
    const request = {
      endpointId: String(args[0]),
      ...(overlapMs !== undefined && { overlapSeconds: BigInt(Math.ceil(overlapMs / 1000)) }),
    };
    const answer = await toFile(out, () => api.webhooks.rotateWebhookSecret(request, CALL_WITHIN));
    const text = () => endpointText(answer.endpoint!) + secretNote(answer.signingSecret, out);
    output.message(RotateWebhookSecretResponseSchema, answer, text);
  });
}

function addReplay(webhook: Command): void {
  const command = webhook
    .command("replay <endpoint> [delivery]")
    .description("send again: one delivery, or all since a time")
    .option("--since <time>", "from this time on: 2026-01-31T09:30:00Z, or a duration ago: 24h", parseTime)
    .addOption(
      new Option(
        "--state <state>",
        `with --since: ${enumWords(WebhookDeliveryStateSchema).join(", ")}`,
      ).argParser(parseEnum<WebhookDeliveryState>(WebhookDeliveryStateSchema)),
    );
  type Options = { since?: Timestamp; state?: WebhookDeliveryState };
  onAction<Options>(command, async ({ options, args, api, output }) => {
    const deliveryId = args[1] as string | undefined;
    const { since, state } = options;
    if ((deliveryId === undefined) === (since === undefined))
      throw new StartupError("give either a delivery or --since", EXIT_USAGE);
    const which =
      deliveryId === undefined
        ? { case: "since" as const, value: since! }
        : { case: "deliveryId" as const, value: deliveryId };
    const request = { endpointId: String(args[0]), which, states: state === undefined ? [] : [state] };
    const answer = await api.webhooks.replayWebhookDeliveries(request, CALL_WITHIN);
    const text = () =>
      `${answer.replayed} ${answer.replayed === 1 ? "delivery is" : "deliveries are"} sent again.`;
    output.message(ReplayWebhookDeliveriesResponseSchema, answer, text);
  });
}

/** With `out` the secret goes into that file alone. */
async function toFile<T extends { signingSecret: string }>(
  out: string | undefined,
  make: () => Promise<T>,
): Promise<T> {
  if (out === undefined) return make();
  const { answer } = await withSecretFile(out, async () => {
    const made = await make();
    if (made.signingSecret === "")
      throw new StartupError(
        "the endpoint is there already, and its secret was shown when it was made",
        EXIT_FAILED,
      );
    return { answer: made, secret: made.signingSecret };
  });
  answer.signingSecret = "";
  return answer;
}

function secretNote(secret: string, out: string | undefined): string {
  if (out !== undefined) return `\nThe secret is in ${out} alone.`;
  if (secret !== "") return `\nsecret  ${secret}\n${KEEP_IT}`;
  return "\nIts secret was shown when it was made; rotate-secret makes a new one.";
}

function droppedText({ droppedDeliveries, lastDroppedAt }: WebhookEndpoint): string {
  if (droppedDeliveries === 0n) return "";
  return `${droppedDeliveries} deliveries, the newest at ${timeText(lastDroppedAt)}`;
}

function endpointTable(endpoints: readonly WebhookEndpoint[]): string {
  const rows = endpoints.map((endpoint) => {
    const { id, name, url, enabledEvents, state, disabledReason, failingSince, droppedDeliveries } = endpoint;
    const standing = [
      enumWord(WebhookStateSchema, state),
      disabledReason,
      failingSince && `failing since ${timeText(failingSince)}`,
      droppedDeliveries > 0n && `${droppedDeliveries} dropped`,
    ];
    return [id, name, url, enabledEvents.join(" "), standing.filter(Boolean).join(", ")];
  });
  return formatTable(["ID", "NAME", "URL", "EVENTS", ""], rows);
}

function endpointText(endpoint: WebhookEndpoint): string {
  return formatFields([
    ["id", endpoint.id],
    ["name", endpoint.name],
    ["url", endpoint.url],
    ["description", endpoint.description],
    ["events", endpoint.enabledEvents.join(" ")],
    ["state", enumWord(WebhookStateSchema, endpoint.state)],
    ["disabled because", endpoint.disabledReason],
    ["failing since", timeText(endpoint.failingSince)],
    ["dropped unsent", droppedText(endpoint)],
    ["old secret until", timeText(endpoint.oldSecretUntil)],
    ["workspace", endpoint.workspaceId],
    ["created", timeText(endpoint.createdAt)],
  ]);
}
