/** `tendon audit`: who did what, and what credentials were used for. */
import { type MessageInitShape, toJson } from "@bufbuild/protobuf";
import { type Timestamp, timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import type { Command } from "commander";
import { systemClock } from "../../kit/clock.ts";
import { isTendonError } from "../../kit/errors.ts";
import {
  type AuditEntry,
  AuditEntrySchema,
  type ListAuditEntriesRequestSchema,
  ListAuditEntriesResponseSchema,
} from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { StopSignal } from "../start/stop-signal.ts";
import { formatTable } from "../table.ts";
import { parseTime, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

interface FilterOptions {
  subject?: string;
  session?: string;
  action?: string;
  actor?: string;
  workspace?: string;
  since?: Timestamp;
  until?: Timestamp;
}

type Filter = Omit<
  Exclude<MessageInitShape<typeof ListAuditEntriesRequestSchema>, { $typeName: string }>,
  "pageSize" | "pageToken"
>;

const EXPORT_PAGE = 1_000;
const FOLLOW_EVERY_MS = 1_000;
/** Entries get their time before they can be seen: one that was long on its way still is found. */
const LOOK_BACK_MS = 60_000;
/** How long a server may be away before following it fails. */
const GIVE_UP_MS = 90_000;

export function addAuditCommands(program: Command): void {
  const audit = program
    .command("audit")
    .description("the audit log: who did what, and what credentials were used for");
  audit.addHelpText(
    "after",
    `
Examples:
  tendon audit list --action credential. --session sesn_01…
  tendon audit follow --actor "proxy apikey_01…"
  tendon audit export --since 2026-01-01T00:00:00Z >audit.ndjson`,
  );
  const list = addPageOptions(addFilters(audit.command("list").description("list entries, newest first")));
  onAction<FilterOptions & PageOptions>(list, async ({ options, api, output }) => {
    const page = await api.admin.listAuditEntries({ ...filterOf(options), ...pageOf(options) }, CALL_WITHIN);
    output.message(ListAuditEntriesResponseSchema, page, () => entryTable(page.entries) + nextPageNote(page));
  });
  const follow = addFilters(
    audit.command("follow").description("show entries as they come, one JSON object a line"),
  );
  onAction<FilterOptions>(follow, async ({ options, api }) => {
    await followEntries(api, filterOf(options), print, new StopSignal());
  });
  const copy = addFilters(
    audit.command("export").description("all entries, oldest first, one JSON object a line"),
  );
  onAction<FilterOptions>(copy, async ({ options, api }) => {
    for await (const entry of entriesOf(api, { ...filterOf(options), ascending: true })) await print(entry);
  });
}

function addFilters(command: Command): Command {
  return command
    .option("--subject <id>", "what it was done to")
    .option("--session <id>", "session that it was done for")
    .option(
      "--action <action>",
      'such as credential.open; with a dot at its end all that begin with it: "credential."',
    )
    .option("--actor <actor>", 'who did it, as entries name it: "proxy apikey_01…"')
    .option("--workspace <id>", "workspace that it concerns")
    .option("--since <time>", "from this time on: 2026-01-31T09:30:00Z, or a duration ago: 24h", parseTime)
    .option("--until <time>", "before this time", parseTime);
}

function filterOf({ subject, session, action, actor, workspace, since, until }: FilterOptions): Filter {
  return {
    subject: subject ?? "",
    sessionId: session ?? "",
    action: action ?? "",
    actor: actor ?? "",
    workspaceId: workspace ?? "",
    ...(since && { since }),
    ...(until && { until }),
  };
}

async function* entriesOf(api: Api, filter: Filter): AsyncGenerator<AuditEntry> {
  for (let pageToken = ""; ; ) {
    const request = { ...filter, pageSize: EXPORT_PAGE, pageToken };
    const page = await api.admin.listAuditEntries(request, CALL_WITHIN);
    yield* page.entries;
    if (page.nextPageToken === "") return;
    pageToken = page.nextPageToken;
  }
}

/** Until it is stopped. Each entry once, also one that is seen later than a younger one; a server may be away for a while. */
async function followEntries(
  api: Api,
  filter: Filter,
  write: (entry: AuditEntry) => Promise<void>,
  { signal }: StopSignal,
): Promise<void> {
  const seen = new Map<string, number>();
  const beganMs = filter.since === undefined ? systemClock.nowMs() : timestampMs(filter.since as Timestamp);
  let newestMs = beganMs;
  let heardMs = systemClock.monotonicMs();
  while (!signal.aborted) {
    const since = timestampFromMs(Math.max(beganMs, newestMs - LOOK_BACK_MS));
    try {
      for await (const entry of entriesOf(api, { ...filter, since, ascending: true })) {
        if (seen.has(entry.id)) continue;
        const atMs = entry.at === undefined ? newestMs : timestampMs(entry.at);
        seen.set(entry.id, atMs);
        newestMs = Math.max(newestMs, atMs);
        await write(entry);
      }
      heardMs = systemClock.monotonicMs();
    } catch (error) {
      const passes = isTendonError(error, "UNAVAILABLE") || isTendonError(error, "DRAINING");
      if (!passes || systemClock.monotonicMs() - heardMs > GIVE_UP_MS) throw error;
    }
    for (const [id, atMs] of seen) if (atMs < newestMs - 2 * LOOK_BACK_MS) seen.delete(id);
    await systemClock.sleep(FOLLOW_EVERY_MS, signal).catch(() => {});
  }
}

/** The detail is a JSON object in the line, not a text with one in it. */
async function print(entry: AuditEntry): Promise<void> {
  const json = toJson(AuditEntrySchema, entry, {
    useProtoFieldName: true,
    alwaysEmitImplicit: true,
  }) as object;
  const line = `${JSON.stringify({ ...json, detail: JSON.parse(entry.detail || "{}") })}\n`;
  if (!process.stdout.write(line))
    await new Promise<void>((resolve) => process.stdout.once("drain", () => resolve()));
}

function entryTable(entries: readonly AuditEntry[]): string {
  const rows = entries.map(({ at, actor, action, subject, sessionId, detail }) => [
    timeText(at),
    actor,
    action,
    subject,
    sessionId,
    detail === "{}" ? "" : detail,
  ]);
  return formatTable(["AT", "WHO", "WHAT", "TO WHAT", "SESSION", "MORE"], rows);
}
