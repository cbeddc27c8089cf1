/** `tendon session`: logs, and what is derived from them. */
import type { Command } from "commander";
import {
  OutcomeResultSchema,
  type Session,
  SessionSchema,
  type SessionStatus,
  SessionStatusSchema,
} from "../../proto/gen/tendon/v1/session_pb.js";
import {
  ListSessionsResponseSchema,
  WakeSessionResponseSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { budgetText } from "../budget-options.ts";
import { CALL_WITHIN, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { agentIdOf, environmentIdOf } from "../named.ts";
import { addOutcomeOptions, type OutcomeOptions, outcomeOf } from "../outcome-options.ts";
import {
  addSessionPartsOptions,
  type SessionPartsOptions,
  sessionPartsOf,
} from "../session-parts-options.ts";
import { statusText, statusWithWork } from "../session-status.ts";
import { formatFields, formatTable } from "../table.ts";
import { usageFields } from "../usage-fields.ts";
import { userMessage } from "../user-events.ts";
import { variablesNote } from "../variables-note.ts";
import { enumWord, enumWords, pairsText, parseEnum, parsePair, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";
import { addSessionCopyCommands } from "./session-copies.ts";
import { addSessionLogCommands } from "./session-log.ts";
import { addSessionOutcomes } from "./session-outcomes.ts";
import { addSessionThreadCommands } from "./session-threads.ts";
import { addSessionTrace } from "./session-trace.ts";
import { addVerify } from "./session-verify.ts";

export function addSessionCommands(program: Command): void {
  const session = program
    .command("session")
    .description("sessions: make them, talk to them, read their logs");
  session.addHelpText(
    "after",
    `
Examples:
  tendon session create --message "run: date"
  tendon session send sesn_01… "and now: run: uptime" --follow
  tendon session list --status running --json`,
  );
  addCreate(session);
  addSessionLogCommands(session);
  addList(session);
  const get = session.command("get <session>").description("show a session");
  onAction(get, async ({ args, api, output }) => {
    const { session: found } = await api.sessions.getSession({ sessionId: String(args[0]) }, CALL_WITHIN);
    output.message(SessionSchema, found!, () => sessionText(found!));
  });
  const wake = session
    .command("wake <session>")
    .description("offer work that waits at once; never needed, never harmful");
  onAction(wake, async ({ args, api, output }) => {
    const answer = await api.sessions.wakeSession({ sessionId: String(args[0]) }, CALL_WITHIN);
    const text = () => (answer.hasWork ? "the session has work" : "the session has nothing to do");
    output.message(WakeSessionResponseSchema, answer, text);
  });
  addSessionCopyCommands(session, sessionText);
  addSessionThreadCommands(session, sessionText);
  addSessionTrace(session);
  addSessionOutcomes(session);
  addVerify(session);
  addEnding(session);
}

function addCreate(session: Command): void {
  type Options = SessionPartsOptions &
    OutcomeOptions & {
      slot?: Record<string, string>;
      title?: string;
      message?: string;
      requestId?: string;
    };
  const create = addSessionPartsOptions(session.command("create").description("make a session"))
    .option(
      "--slot <slot=environment>",
      "environment of a further hand, by id or name; may be given several times",
      parsePair,
    )
    .option("--title <text>", "title for people")
    .option("--message <text>", "first message")
    .option("--request-id <id>", "makes repeating this command safe");
  const command = addOutcomeOptions(create, "after the message, if there is any").addHelpText(
    "after",
    '\nExamples:\n  tendon session create --message "run: uname -a" --json\n  tendon session create --outcome "run: date +%Y" --rubric "contains: 20"\n  tendon session create --repo "https://github.com/owner/name#main@src" --vault vlt_01…',
  );
  onAction<Options>(command, async ({ options, api, output }) => {
    const outcome = outcomeOf(options);
    const request = {
      ...(await sessionPartsOf(api, options)),
      requestId: options.requestId ?? "",
      slotEnvironmentIds: await slotEnvironments(api, options.slot ?? {}),
      title: options.title ?? "",
      initialEvents: [
        ...(options.message === undefined ? [] : [userMessage(options.message)]),
        ...(outcome === undefined ? [] : [outcome]),
      ],
    };
    const { session: made } = await api.sessions.createSession(request, CALL_WITHIN);
    output.message(SessionSchema, made!, () => sessionText(made!));
    const note = await variablesNote(api, made!);
    if (note !== undefined) output.note(note);
  });
}

async function slotEnvironments(api: Api, slots: Record<string, string>): Promise<Record<string, string>> {
  const entries = Object.entries(slots).map(
    async ([slot, named]) => [slot, await environmentIdOf(api.environments, named)] as const,
  );
  return Object.fromEntries(await Promise.all(entries));
}

function addList(session: Command): void {
  const command = addPageOptions(session.command("list").description("list sessions, newest first"))
    .option(
      "--status <status>",
      `${enumWords(SessionStatusSchema).join(", ")}; may be given several times`,
      (word, before: SessionStatus[] | undefined) => [
        ...(before ?? []),
        parseEnum<SessionStatus>(SessionStatusSchema)(word),
      ],
    )
    .option("--agent <agent>", "only sessions of this agent; id or name")
    .option("--archived", "also archived ones")
    .option("--ascending", "oldest first");
  type Options = PageOptions & {
    status?: SessionStatus[];
    agent?: string;
    archived?: boolean;
    ascending?: boolean;
  };
  onAction<Options>(command, async ({ options, api, output }) => {
    const { agent } = options;
    const request = {
      ...pageOf(options),
      statuses: options.status ?? [],
      agentId: agent === undefined ? "" : await agentIdOf(api.agents, agent),
      includeArchived: options.archived === true,
      ascending: options.ascending === true,
    };
    const page = await api.sessions.listSessions(request, CALL_WITHIN);
    const text = () => sessionTable(page.sessions) + nextPageNote(page);
    output.message(ListSessionsResponseSchema, page, text);
  });
}

function addEnding(session: Command): void {
  const archive = session.command("archive <session>").description("end a session for good and keep its log");
  archive.option("--interrupt", "also when it runs");
  onAction<{ interrupt?: boolean }>(archive, async ({ options, args, api, output }) => {
    const request = { sessionId: String(args[0]), interrupt: options.interrupt === true };
    const { session: ended } = await api.sessions.archiveSession(request, CALL_WITHIN);
    output.message(SessionSchema, ended!, () => sessionText(ended!));
  });
  const erase = session.command("delete <session>").description("erase a session and its log");
  erase.option("--interrupt", "also when it runs");
  onAction<{ interrupt?: boolean }>(erase, async ({ options, args, api, output }) => {
    const sessionId = String(args[0]);
    await api.sessions.deleteSession({ sessionId, interrupt: options.interrupt === true }, CALL_WITHIN);
    output.value({ deleted: sessionId }, () => `${sessionId} is erased`);
  });
}

function sessionTable(sessions: readonly Session[]): string {
  const rows = sessions.map(({ id, title, status, stopReason, head, agent, updatedAt }) => [
    id,
    title,
    statusText(status, stopReason),
    String(head),
    agent?.spec?.name ?? "",
    timeText(updatedAt),
  ]);
  return formatTable(["ID", "TITLE", "STATUS", "EVENTS", "AGENT", "CHANGED"], rows);
}

/** With its threads; nothing for a session that has made none. */
function treeFields(tree: Session["tree"]): [name: string, text: string | undefined][] {
  if (tree === undefined) return [];
  const { threads, liveThreads, running, atBudget, usage } = tree;
  const held = atBudget === 0 ? "" : `, ${atBudget} at the budget`;
  const fields = usageFields(usage).map(
    ([name, text]) => [`${name}, all`, text] as [string, string | undefined],
  );
  return [
    ["threads", `${threads}: ${threads - liveThreads} stopped, ${running} working with itself${held}`],
    ...fields,
  ];
}

function outcomeField(outcome: Session["outcomeEvaluations"][number]): [name: string, text: string] {
  const { outcomeId, result, iteration } = outcome;
  return ["outcome", `${outcomeId}: ${enumWord(OutcomeResultSchema, result)}, iteration ${iteration}`];
}

function sessionText(session: Session): string {
  const { usage } = session;
  return formatFields([
    ["id", session.id],
    ["title", session.title],
    ["status", statusWithWork(session)],
    ["events", String(session.head)],
    [
      "agent",
      `${session.agent?.spec?.name ?? ""} ${session.agent?.id ?? ""} version ${session.agent?.version ?? 0}`,
    ],
    ["environment", session.environmentId],
    ["deployment", session.deploymentId],
    ["slots", pairsText(session.slotEnvironmentIds)],
    ["metadata", pairsText(session.metadata)],
    ["thread of", session.rootSessionId && `${session.rootSessionId}, made by ${session.parentSessionId}`],
    ...usageFields(usage),
    ["budget", budgetText(session.budget)],
    ...treeFields(session.tree),
    ...session.outcomeEvaluations.map(outcomeField),
    [
      "forked from",
      session.forkedFromSessionId &&
        `${session.forkedFromSessionId} at position ${session.forkedFromPosition}`,
    ],
    ["created", timeText(session.createdAt)],
    ["changed", timeText(session.updatedAt)],
    ["archived", timeText(session.archivedAt)],
  ]);
}
