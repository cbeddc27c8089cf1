/** `tendon session send`, `events` and `watch`: writing to a log and reading it. */

import { create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import type { TendonError } from "../../kit/errors.ts";
import { StartupError } from "../../kit/program.ts";
import type { Event, EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import {
  EmitEventsResponseSchema,
  EventOrder,
  GetEventsResponseSchema,
  type WatchEventsResponse,
  WatchEventsResponseSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { EventView, type EventViewOptions } from "../chat/event-view.ts";
import { CALL_WITHIN, type CommandContext, EXIT_USAGE, onAction } from "../command.ts";
import { addOutcomeOptions, type OutcomeOptions, outcomeOf } from "../outcome-options.ts";
import type { Output } from "../output.ts";
import { readText } from "../read-file.ts";
import { formatTable } from "../table.ts";
import { followTurn } from "../turn.ts";
import { clientEvent, userInterrupt, userMessage } from "../user-events.ts";
import { type Watched, watchSession } from "../watch-session.ts";
import { parseCount, parseList, parsePosition, timeText } from "../words.ts";

const MAX_EVENTS = 1000;
/** Servers sign at once; one that was left by another is signed within these. */
const CHECKPOINT_WITHIN_MS = 8_000;

export function addSessionLogCommands(session: Command): void {
  addSend(session);
  addEvents(session);
  addWatch(session);
}

interface SendOptions extends OutcomeOptions {
  type?: string;
  payload?: string;
  id?: string;
  interrupt?: boolean;
  follow?: boolean;
}

function addSend(session: Command): void {
  const send = session
    .command("send <session> [text...]")
    .description('append a message, or another event; "-" reads the text from standard input')
    .option("--type <type>", "type of the event, such as user.tool_confirmation or acme.created")
    .option(
      "--payload <json>",
      'payload of the event: JSON text of one object, kept as it is; "-" reads it from standard input',
    )
    .option("--id <id>", "id of the event (sevt_…); makes repeating this command safe")
    .option("--interrupt", "interrupt what the session does (before the text, if there is any)");
  const command = addOutcomeOptions(send, "after the text, if there is any")
    .option(
      "--follow",
      "show what happens until the session rests; ends with 1 unless it rests at the end of a turn",
    )
    .addHelpText(
      "after",
      `
Examples:
  tendon session send sesn_01… "run: uname -a" --follow
  tendon session send sesn_01… --interrupt
  tendon session send sesn_01… --outcome "run: date +%Y" --rubric "contains: 20" --follow
  tendon session send sesn_01… --type acme.created --payload '{"number": 7}'`,
    );
  onAction<SendOptions>(command, async ({ options, args, api, output }) => {
    const sessionId = String(args[0]);
    const events = eventsToSend(options, (args[1] as string[] | undefined) ?? []);
    const answer = await api.sessions.emitEvents({ sessionId, events }, CALL_WITHIN);
    output.message(EmitEventsResponseSchema, answer, () =>
      options.follow
        ? ""
        : answer.receipts.map(({ id, position }) => `${id} at position ${position}`).join("\n"),
    );
    if (!options.follow) return 0;
    const after = answer.receipts.at(-1)!.position;
    const { reason } = await followTurn({ sessions: api.sessions, sessionId, after }, showOn(output, false));
    return reason === "end_turn" ? 0 : 1;
  });
}

function eventsToSend(options: SendOptions, words: readonly string[]): EventInput[] {
  const events = options.interrupt ? [userInterrupt()] : [];
  if (options.type !== undefined) {
    if (words.length > 0)
      throw new StartupError("--type takes its content from --payload; leave the text out", EXIT_USAGE);
    const payload = options.payload === "-" ? readText("-") : (options.payload ?? "{}");
    return [...events, clientEvent(options.type, payload, options.id)];
  }
  if (options.payload !== undefined) throw new StartupError("--payload goes with --type", EXIT_USAGE);
  const outcome = outcomeOf(options);
  const text = words.length === 1 && words[0] === "-" ? readText("-") : words.join(" ");
  if (text !== "") {
    const message = userMessage(text);
    if (options.id !== undefined) message.id = options.id;
    events.push(message);
  }
  if (outcome !== undefined) events.push(outcome);
  if (events.length === 0)
    throw new StartupError("nothing to send: give a text, --interrupt, --outcome, or --type", EXIT_USAGE);
  return events;
}

interface EventsOptions {
  after?: bigint;
  before?: bigint;
  limit?: number;
  types?: string[];
  desc?: boolean;
}

function addEvents(session: Command): void {
  const command = session
    .command("events <session>")
    .description("read a slice of a log")
    .option("--after <position>", "only events after it", parsePosition(0))
    .option("--before <position>", "only events before it", parsePosition(0))
    .option("--limit <n>", `at most so many, 1 to ${MAX_EVENTS}; left out: 100`, parseCount(1, MAX_EVENTS))
    .option("--types <types>", "only these, separated by commas", parseList)
    .option("--desc", "newest first")
    .addHelpText(
      "after",
      `
The last 5 events before position 40:
  tendon session events sesn_01… --before 40 --limit 5 --desc
All messages of the agent, for a program:
  tendon session events sesn_01… --types agent.message --json | jq -r '.events[].payload'`,
    );
  onAction<EventsOptions>(command, async ({ options, args, api, output }) => {
    const request = {
      sessionId: String(args[0]),
      afterPosition: options.after ?? 0n,
      beforePosition: options.before ?? 0n,
      limit: options.limit ?? 0,
      types: options.types ?? [],
      order: options.desc ? EventOrder.DESCENDING : EventOrder.ASCENDING,
    };
    const slice = await api.sessions.getEvents(request, CALL_WITHIN);
    output.message(
      GetEventsResponseSchema,
      slice,
      () => eventTable(slice.events) + moreNote(slice, options.desc),
    );
  });
}

function eventTable(events: readonly Event[]): string {
  const rows = events.map((event) => [
    String(event.position),
    timeText(event.createdAt),
    event.type,
    event.payloadOmitted
      ? `(${event.payloadOmitted.sizeBytes} bytes left out)`
      : event.payload.slice(0, 2_000),
  ]);
  return formatTable(["POSITION", "TIME", "TYPE", "PAYLOAD"], rows);
}

function moreNote({ events, hasMore }: { events: readonly Event[]; hasMore: boolean }, desc = false): string {
  const last = events.at(-1);
  return hasMore && last !== undefined ? `\nMore: --${desc ? "before" : "after"} ${last.position}` : "";
}

interface WatchOptions {
  after?: bigint;
  types?: string[];
  previews?: boolean;
  untilIdle?: boolean;
}

function addWatch(session: Command): void {
  const command = session
    .command("watch <session>")
    .description("show what is in a log and then what comes, until Ctrl-C; goes on after disconnects")
    .option("--after <position>", "only events after it; -1: only what comes", parsePosition(-1))
    .option("--types <types>", "only these, separated by commas", parseList)
    .option("--previews", "also what is forming: text of the model, output of calls")
    .option(
      "--until-idle",
      "end when all that is there was shown and the session rests: no message, answer or interrupt waits; with --json a tamper-evident session's checkpoint is waited for, a few seconds",
    )
    .addHelpText("after", "\nExample:\n  tendon session watch sesn_01… --after 12 --previews --json");
  onAction<WatchOptions>(command, watch);
}

async function watch({ options, args, api, output }: CommandContext<WatchOptions>): Promise<number> {
  const sessionId = String(args[0]);
  const show = showOn(output, true);
  const after = options.after ?? 0n;
  const previews = options.previews === true;
  const isTamperEvident = async () =>
    (await api.sessions.getSession({ sessionId }, CALL_WITHIN)).session?.tamperEvident === true;
  if (options.untilIdle) {
    const checkpointWithinMs = output.json && (await isTamperEvident()) ? CHECKPOINT_WITHIN_MS : undefined;
    const request = { sessions: api.sessions, sessionId, after, previews, checkpointWithinMs };
    const { reason } = await followTurn(request, show);
    return reason === "end_turn" ? 0 : 1;
  }
  const stop = new AbortController();
  process.once("SIGINT", () => stop.abort());
  process.once("SIGTERM", () => stop.abort());
  const request = {
    sessions: api.sessions,
    sessionId,
    after,
    types: options.types,
    previews,
    signal: stop.signal,
  };
  const onLost = (error: TendonError) => output.note(`connection lost, trying again: ${error.message}`);
  for await (const seen of watchSession({ ...request, onLost })) show(seen);
  return 0;
}

/** Text for people, or a line of JSON for each. */
export function showOn(
  output: Output,
  showUser: boolean,
  events: EventViewOptions["events"] = "all",
): (seen: Watched) => void {
  const view = new EventView({
    write: (text) => output.write(text),
    showUser,
    events,
    colour: output.isRich,
  });
  return (seen) => {
    if (output.json) output.message(WatchEventsResponseSchema, watchResponse(seen), () => "");
    else if ("event" in seen) view.event(seen.event);
    else if ("preview" in seen) view.preview(seen.preview);
  };
}

function watchResponse(seen: Watched): WatchEventsResponse {
  if ("event" in seen)
    return create(WatchEventsResponseSchema, { kind: { case: "event", value: seen.event } });
  const kind =
    "preview" in seen
      ? ({ case: "preview", value: seen.preview } as const)
      : ({ case: "checkpoint", value: seen.checkpoint } as const);
  return create(WatchEventsResponseSchema, { kind });
}
