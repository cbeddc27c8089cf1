/** `tendon webhook deliveries`: what an endpoint was told, and what went wrong. */
import { type Command, Option } from "commander";
import {
  ListWebhookDeliveriesResponseSchema,
  type WebhookDelivery,
  type WebhookDeliveryState,
  WebhookDeliveryStateSchema,
} from "../../proto/gen/tendon/v1/webhook_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { formatTable } from "../table.ts";
import { enumWord, enumWords, parseEnum, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

export function addDeliveryList(webhook: Command): void {
  const command = addPageOptions(
    webhook.command("deliveries <endpoint>").description("list what it was told, newest first"),
  ).addOption(
    new Option("--state <state>", enumWords(WebhookDeliveryStateSchema).join(", ")).argParser(
      parseEnum<WebhookDeliveryState>(WebhookDeliveryStateSchema),
    ),
  );
  onAction<PageOptions & { state?: WebhookDeliveryState }>(
    command,
    async ({ options, args, api, output }) => {
      const { state } = options;
      const states = state === undefined ? [] : [state];
      const request = { endpointId: String(args[0]), states, ...pageOf(options) };
      const page = await api.webhooks.listWebhookDeliveries(request, CALL_WITHIN);
      const text = () => deliveryTable(page.deliveries) + nextPageNote(page);
      output.message(ListWebhookDeliveriesResponseSchema, page, text);
    },
  );
}

function deliveryTable(deliveries: readonly WebhookDelivery[]): string {
  const rows = deliveries.map((delivery) => [
    delivery.id,
    delivery.eventType,
    delivery.subjectId,
    timeText(delivery.createdAt),
    enumWord(WebhookDeliveryStateSchema, delivery.state),
    String(delivery.attempts),
    [delivery.lastError, delivery.nextAttemptAt && `next ${timeText(delivery.nextAttemptAt)}`]
      .filter(Boolean)
      .join("; "),
  ]);
  return formatTable(["ID", "EVENT", "ABOUT", "HAPPENED", "STATE", "TRIES", ""], rows);
}
