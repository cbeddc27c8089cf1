/** `tendon hand`: hands by themselves, without a brain. */
import { readFileSync, statSync } from "node:fs";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { newId } from "../../kit/ids.ts";
import { StartupError } from "../../kit/program.ts";
import {
  ExecutionOutcome,
  type ExecutionResult,
  type Hand,
  type HandResourceSchema,
  HandSchema,
  HandStateSchema,
} from "../../proto/gen/tendon/v1/hand_pb.js";
import { ExecuteResponseSchema, ListHandsResponseSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { CALL_WITHIN, type CommandContext, EXIT_USAGE, onAction } from "../command.ts";
import { environmentIdOf } from "../named.ts";
import type { Output } from "../output.ts";
import { failureLine, StreamedTail, unstreamedText } from "../streamed-result.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, parseDuration, parsePair, parseRepeated, timeText } from "../words.ts";
import { addHandCopy } from "./hand-copy.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const DAY_MS = 24 * 3_600_000;
/** Making a hand may take the environment's provision timeout, which is an hour at most. */
const PROVISION_WITHIN = { deadlineMs: 3_600_000 + 30_000 };

export function addHandCommands(program: Command): void {
  const hand = program.command("hand").description("hands: make them, run tools in them, give them back");
  hand.addHelpText(
    "after",
    `
Examples:
  tendon hand provision --json
  tendon hand exec hand_01… "uname -a"
  tendon hand cp ./src hand_01…:src
  tendon hand release hand_01…`,
  );
  const list = addPageOptions(hand.command("list").description("list hands, newest first"))
    .option("--session <session>", "only hands of this session")
    .option("--all", "also lost and released ones");
  onAction<PageOptions & { session?: string; all?: boolean }>(list, async ({ options, api, output }) => {
    const request = {
      ...pageOf(options),
      sessionId: options.session ?? "",
      includeEnded: options.all === true,
    };
    const page = await api.hands.listHands(request, CALL_WITHIN);
    output.message(ListHandsResponseSchema, page, () => handTable(page.hands) + nextPageNote(page));
  });
  addProvision(hand);
  addExec(hand);
  addHandCopy(hand);
  addHandOver(hand);
  const release = hand
    .command("release <hand>")
    .description("give a hand back: what runs in it is killed, its workspace removed");
  onAction(release, async ({ args, api, output }) => {
    const { hand: released } = await api.hands.releaseHand({ handId: String(args[0]) }, CALL_WITHIN);
    output.message(HandSchema, released!, () => handText(released!));
  });
}

function addHandOver(hand: Command): void {
  type Options = { slot?: string; requestId?: string };
  const command = hand
    .command("hand-over <hand> <session>")
    .description("pass a hand on to a session, with its files and what runs in it; both logs say so")
    .option("--slot <slot>", "slot that it gets there; left out: the default one")
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<Options>(command, async ({ options, args, api, output }) => {
    const request = {
      requestId: options.requestId ?? newId("request"),
      handId: String(args[0]),
      toSessionId: String(args[1]),
      toSlot: options.slot ?? "",
    };
    const { hand: passed } = await api.hands.handOver(request, CALL_WITHIN);
    output.message(HandSchema, passed!, () => handText(passed!));
  });
}

interface ProvisionOptions {
  env?: string;
  session?: string;
  slot?: string;
  requestId?: string;
  file?: string[];
  variable?: Record<string, string>;
  setup?: string[];
}

/** Variables, then files, then commands, in the order in which they were given. */
function resourcesOf({
  file,
  variable,
  setup,
}: ProvisionOptions): MessageInitShape<typeof HandResourceSchema>[] {
  return [
    ...Object.entries(variable ?? {}).map(
      ([name, value]) => ({ kind: { case: "variable", value: { name, value } } }) as const,
    ),
    ...(file ?? []).map(fileResource),
    ...(setup ?? []).map((command) => ({ kind: { case: "setupCommand", value: { command } } }) as const),
  ];
}

function fileResource(text: string) {
  const [from, path] = [text.slice(0, text.lastIndexOf("=")), text.slice(text.lastIndexOf("=") + 1)];
  if (from === "" || path === "") throw new StartupError(`--file ${text}: give it as LOCAL=PATH`, EXIT_USAGE);
  try {
    const content = readFileSync(from);
    const executable = (statSync(from).mode & 0o100) !== 0;
    return { kind: { case: "inlineFile", value: { path, content, executable } } } as const;
  } catch (error) {
    throw new StartupError(`--file ${text}: ${(error as Error).message}`, EXIT_USAGE);
  }
}

function addProvision(hand: Command): void {
  const command = hand
    .command("provision")
    .description("make a hand and wait until it takes calls")
    .option("--env <environment>", "id or name; left out: the session's, or the default environment")
    .option("--session <session>", "session that will own it")
    .option("--slot <slot>", "slot of the session")
    .option("--request-id <id>", "makes repeating this command safe")
    .option(
      "--file <local=path>",
      "a file of at most 256 KiB that it is given; may be given several times",
      parseRepeated,
    )
    .option(
      "--variable <name=value>",
      "of its processes; nothing secret; may be given several times",
      parsePair,
    )
    .option("--setup <command>", "run once when it is made; may be given several times", parseRepeated)
    .addHelpText(
      "after",
      '\nExample:\n  tendon hand exec "$(tendon hand provision --json | jq -r .id)" "uname -a"',
    );
  onAction<ProvisionOptions>(command, async ({ options, api, output }) => {
    const { env } = options;
    const request = {
      requestId: options.requestId ?? newId("request"),
      sessionId: options.session ?? "",
      slot: options.slot ?? "",
      environmentId: env === undefined ? "" : await environmentIdOf(api.environments, env),
      resources: resourcesOf(options),
    };
    const { hand: made } = await api.hands.provision(request, PROVISION_WITHIN);
    output.message(HandSchema, made!, () => handText(made!));
  });
}

interface ExecOptions {
  tool?: string;
  input?: string;
  timeout?: number;
  id?: string;
  session?: string;
  reason?: string;
}

function addExec(hand: Command): void {
  const command = hand
    .command("exec <hand> [command...]")
    .description("run a command with the hand's bash, or another tool; its output streams to standard output")
    .option("--tool <name>", "another tool, with --input")
    .option("--input <json>", "the tool's input: JSON text of one object")
    .option("--timeout <duration>", "such as 10m; left out: 2m", parseDuration(DAY_MS))
    .option("--id <id>", "name of the execution: repeating the command with it runs nothing twice")
    .option("--reason <text>", "why you work on a session's hand; stands in its log")
    .addHelpText(
      "after",
      `
Ends with 0 when the call succeeded, with 1 when it failed.

Examples:
  tendon hand exec hand_01… "uname -a"
  tendon hand exec hand_01… --tool read --input '{"file_path": "notes.txt"}'
  tendon hand exec hand_01… --timeout 1h --json -- make test
  tendon hand exec hand_01… --reason "looking why the build fails" "df -h"     # a session's hand`,
    );
  onAction<ExecOptions>(command, execute);
}

async function execute({ options, args, api, output }: CommandContext<ExecOptions>): Promise<number> {
  const call = callOf(options, (args[1] as string[] | undefined) ?? []);
  const request = {
    executionId: options.id ?? newId("execution"),
    handId: String(args[0]),
    timeoutMs: BigInt(options.timeout ?? 0),
    reason: options.reason ?? "",
    ...call,
  };
  const streamed = new StreamedTail();
  for await (const response of api.hands.execute(request)) {
    const { kind } = response;
    if (output.json) output.message(ExecuteResponseSchema, response, () => "");
    else if (kind.case === "output") {
      streamed.push(kind.value.data);
      process.stdout.write(kind.value.data);
    }
    if (kind.case !== "result") continue;
    if (!output.json) showResult(kind.value, streamed, output);
    return kind.value.isError ? 1 : 0;
  }
  throw new StartupError(
    "the server ended the call without a result; the same command with the same --id asks again",
  );
}

function callOf(options: ExecOptions, words: readonly string[]): { name: string; input: string } {
  if (options.tool !== undefined) {
    if (words.length > 0)
      throw new StartupError("--tool takes its input from --input; leave the command out", EXIT_USAGE);
    return { name: options.tool, input: options.input ?? "{}" };
  }
  if (words.length === 0)
    throw new StartupError("nothing to run: give a command, or --tool and --input", EXIT_USAGE);
  return { name: "bash", input: JSON.stringify({ command: words.join(" ") }) };
}

/** Tools that stream nothing have all they say in the result; of others it has notes, and why they failed. */
function showResult(result: ExecutionResult, streamed: StreamedTail, output: Output): void {
  const rest = unstreamedText(result.content, streamed);
  if (streamed.written === 0) output.write(ensureNewline(rest));
  else if (rest !== "") output.note(rest);
  if (result.isError || result.outcome !== ExecutionOutcome.COMPLETED) output.note(failureLine(result));
}

function ensureNewline(text: string): string {
  return text === "" || text.endsWith("\n") ? text : `${text}\n`;
}

function handTable(hands: readonly Hand[]): string {
  const rows = hands.map(({ id, sessionId, slot, driver, state, lastUsedAt, handAgentId, stateDetail }) => [
    id,
    enumWord(HandStateSchema, state),
    driver,
    slot,
    sessionId,
    handAgentId,
    timeText(lastUsedAt),
    stateDetail,
  ]);
  return formatTable(["ID", "STATE", "DRIVER", "SLOT", "SESSION", "HAND AGENT", "LAST USED", "WHY"], rows);
}

function handText(hand: Hand): string {
  return formatFields([
    ["id", hand.id],
    ["state", [enumWord(HandStateSchema, hand.state), hand.stateDetail].filter(Boolean).join(": ")],
    ["driver", hand.driver],
    ["session", hand.sessionId],
    ["slot", hand.slot],
    ["owner number", String(hand.ownerNumber)],
    ["environment", hand.environmentId],
    ["hand agent", hand.handAgentId],
    ["tools", hand.tools.map(({ name }) => name).join(", ")],
    ["left running", hand.leftProcesses.map(({ pid, command }) => `${pid} ${command}`).join("\n")],
    ["created", timeText(hand.createdAt)],
    ["last used", timeText(hand.lastUsedAt)],
  ]);
}
