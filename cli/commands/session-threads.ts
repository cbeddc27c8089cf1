/** `tendon session threads|stop|budget`: a session with all of its threads. */
import type { Command } from "commander";
import { systemClock } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import { StopSessionsResponseSchema } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { type Session, SessionSchema, SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import {
  ListThreadsResponseSchema,
  StopTreeResponseSchema,
} from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { addBudgetOptions, type BudgetOptions, budgetOf } from "../budget-options.ts";
import { CALL_WITHIN, type CommandContext, EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import { statusText } from "../session-status.ts";
import { formatTable } from "../table.ts";
import { timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const STOPPED_WITHIN_MS = 10_000;
const LOOK_EVERY_MS = 100;
const LOOKS_AT_ONCE = 16;

export function addSessionThreadCommands(session: Command, sessionText: (session: Session) => string): void {
  addThreads(session);
  addStop(session);
  const command = addBudgetOptions(
    session
      .command("budget <session>")
      .description("set what a session and its threads may use; what rests because it was spent goes on"),
  )
    .option("--none", "take all limits away")
    .addHelpText("after", "\nExample:\n  tendon session budget sesn_01… --max-cost 5 --max-time 2h");
  onAction<BudgetOptions & { none?: boolean }>(command, async ({ options, args, api, output }) => {
    const budget = options.none ? {} : budgetOf(options);
    if (budget === undefined) throw new StartupError("name a limit, or --none", EXIT_USAGE);
    const request = { sessionId: String(args[0]), budget };
    const { session: changed } = await api.sessions.updateSession(request, CALL_WITHIN);
    output.message(SessionSchema, changed!, () => sessionText(changed!));
  });
}

function addThreads(session: Command): void {
  const command = addPageOptions(
    session.command("threads <session>").description("list the threads of a session, oldest first"),
  )
    .option("--archived", "also threads that were stopped")
    .addHelpText(
      "after",
      "\nA thread's id is taken wherever a session's is:\n  tendon session events sthr_01… --types agent.message",
    );
  onAction<PageOptions & { archived?: boolean }>(command, async ({ options, args, api, output }) => {
    const request = {
      ...pageOf(options),
      sessionId: String(args[0]),
      wholeTree: true,
      includeArchived: options.archived === true,
    };
    const page = await api.threads.listThreads(request, CALL_WITHIN);
    output.message(ListThreadsResponseSchema, page, () => threadTable(page.threads) + nextPageNote(page));
  });
}

function threadTable(threads: readonly Session[]): string {
  const rows = threads.map((thread) => [
    thread.id,
    thread.title,
    statusText(thread.status, thread.stopReason),
    thread.agent?.spec?.name ?? "",
    thread.parentSessionId === thread.rootSessionId ? "" : thread.parentSessionId,
    String(thread.usage?.modelRequests ?? 0n),
    timeText(thread.updatedAt),
  ]);
  return formatTable(["ID", "TITLE", "STATUS", "AGENT", "MADE BY", "REQUESTS", "CHANGED"], rows);
}

type StopOptions = { all?: boolean; workspace?: string };

function addStop(session: Command): void {
  const command = session
    .command("stop [session]")
    .description(
      "interrupt a session and its threads, or all that there are, and wait until nothing of them works",
    )
    .option(
      "--all",
      "all sessions of the key's workspace; with an installation's admin key of all workspaces",
    )
    .option("--workspace <id>", "with --all: only those of this workspace")
    .addHelpText(
      "after",
      "\nWhat waited in their logs goes on waiting for a new message.\n\nExamples:\n  tendon session stop sesn_01…\n  tendon session stop --all",
    );
  onAction<StopOptions>(command, async (context) => {
    const sessionId = context.args[0] as string | undefined;
    if ((sessionId === undefined) !== (context.options.all === true)) {
      const problem = sessionId === undefined ? "name a session, or --all" : "a session or --all, not both";
      throw new StartupError(problem, EXIT_USAGE);
    }
    return sessionId === undefined ? stopAll(context) : stopOne(context, sessionId);
  });
}

async function stopOne(context: CommandContext<StopOptions>, sessionId: string): Promise<number> {
  const { api, output } = context;
  const answer = await api.threads.stopTree({ sessionId }, CALL_WITHIN);
  const working = await stillWorking(context, answer.sessionIds);
  output.message(StopTreeResponseSchema, answer, () => stoppedText(answer.sessionIds, working));
  return working.length === 0 ? 0 : EXIT_FAILED;
}

async function stopAll(context: CommandContext<StopOptions>): Promise<number> {
  const { api, output, options } = context;
  const answer = await api.admin.stopSessions({ workspaceId: options.workspace ?? "" }, CALL_WITHIN);
  const working = await stillWorking(context, answer.sessionIds);
  output.message(StopSessionsResponseSchema, answer, () => stoppedText(answer.sessionIds, working));
  return working.length === 0 ? 0 : EXIT_FAILED;
}

/** Of these, who still works when the time is over. */
async function stillWorking({ api }: CommandContext<StopOptions>, ids: readonly string[]): Promise<string[]> {
  const endMs = systemClock.monotonicMs() + STOPPED_WITHIN_MS;
  const waiting = [...ids];
  const working: string[] = [];
  const lookAtNext = async () => {
    for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
      if (!(await comesToRest(api, id, endMs))) working.push(id);
    }
  };
  await Promise.all(Array.from({ length: LOOKS_AT_ONCE }, lookAtNext));
  return working;
}

async function comesToRest(
  api: CommandContext<object>["api"],
  sessionId: string,
  endMs: number,
): Promise<boolean> {
  for (;;) {
    const { session } = await api.sessions.getSession({ sessionId }, CALL_WITHIN);
    const works = [SessionStatus.RUNNING, SessionStatus.RESCHEDULING].includes(session!.status);
    if (!works) return true;
    if (systemClock.monotonicMs() >= endMs) return false;
    await systemClock.sleep(LOOK_EVERY_MS);
  }
}

function stoppedText(ids: readonly string[], working: readonly string[]): string {
  if (ids.length === 0) return "nothing works";
  const stopped = `${ids.length - working.length} of ${ids.length} stopped`;
  return working.length === 0 ? stopped : `${stopped}; still working: ${working.join(", ")}`;
}
