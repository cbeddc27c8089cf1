/** `tendon session fork`, `export` and `import`: logs that begin as a copy. */
import { createReadStream, createWriteStream } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Command } from "commander";
import { isTendonError } from "../../kit/errors.ts";
import { StartupError } from "../../kit/program.ts";
import { type Session, SessionSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import { EXIT_USAGE, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { parseCount, parseRepeated } from "../words.ts";

/** A log of a million events takes a minute. */
const COPY_WITHIN = { deadlineMs: 30 * 60_000 } as const;

const PIECE_BYTES = 256 * 1024;

export function addSessionCopyCommands(session: Command, sessionText: (session: Session) => string): void {
  addFork(session, sessionText);
  addExport(session);
  addImport(session, sessionText);
}

interface NewSessionOptions {
  title?: string;
  vault?: string[];
  requestId?: string;
}

function addNewSessionOptions(command: Command): Command {
  return command
    .option("--title <text>", "left out: the title that it had")
    .option(
      "--vault <vault>",
      "in order of priority; may be given several times; none are inherited",
      parseRepeated,
    )
    .option("--request-id <id>", "makes repeating this command safe");
}

function newSession({ title = "", vault = [], requestId = "" }: NewSessionOptions) {
  return { title, vaultIds: vault, requestId };
}

function addFork(session: Command, sessionText: (session: Session) => string): void {
  const command = addNewSessionOptions(
    session
      .command("fork <session>")
      .description(
        "make a session that shares the log up to a position; what was going on there goes on in it",
      )
      .option(
        "--at <position>",
        "last event that is shared; left out: the newest",
        parseCount(1, 2 ** 53 - 1),
      ),
  ).addHelpText("after", "\nExample:\n  tendon session fork sesn_01… --at 12 --json");
  onAction<NewSessionOptions & { at?: number }>(command, async ({ options, args, api, output }) => {
    const request = { ...newSession(options), sessionId: String(args[0]), position: BigInt(options.at ?? 0) };
    const { session: made } = await api.sessions.forkSession(request, COPY_WITHIN);
    output.message(SessionSchema, made!, () => sessionText(made!));
  });
}

function addExport(session: Command): void {
  const command = session
    .command("export <session>")
    .description("write a log as lines of JSON to standard output, or to a file")
    .option("--output <file>", "appears once it is whole")
    .option("--internal", "also what only brains see; needs an admin's key")
    .addHelpText(
      "after",
      `
Examples:
  tendon session export sesn_01… --internal --output log.ndjson
  tendon session export sesn_01… | gzip > log.ndjson.gz`,
    );
  onAction<{ output?: string; internal?: boolean }>(command, async ({ options, args, api, output }) => {
    const request = { sessionId: String(args[0]), withInternal: options.internal === true };
    const chunks = Readable.from(chunksOf(api, request));
    if (options.output === undefined) {
      await pipeline(chunks, process.stdout, { end: false });
      return;
    }
    await writeWhole(chunks, options.output);
    output.note(`written to ${options.output}`);
  });
}

async function* chunksOf(api: Api, request: { sessionId: string; withInternal: boolean }) {
  for await (const { chunk } of api.sessions.exportSession(request, COPY_WITHIN)) yield chunk;
}

/** Half a log never has the file's name. */
async function writeWhole(chunks: Readable, file: string): Promise<void> {
  const partial = `${file}.partial`;
  try {
    await pipeline(chunks, createWriteStream(partial, { mode: 0o600 }));
    await rename(partial, file);
  } catch (error) {
    await rm(partial, { force: true });
    throw asFileFailure(error, `cannot write ${file}`);
  }
}

function addImport(session: Command, sessionText: (session: Session) => string): void {
  const command = addNewSessionOptions(
    session
      .command("import <file>")
      .description('make a session from an exported log; "-" reads it from standard input')
      .option(
        "--env <environment>",
        "left out: the one that it had if it is there, else the workspace's default",
      ),
  ).addHelpText(
    "after",
    `
Examples:
  tendon session import log.ndjson
  gunzip < log.ndjson.gz | tendon session import - --json`,
  );
  onAction<NewSessionOptions & { env?: string }>(command, async ({ options, args, api, output }) => {
    const start = { ...newSession(options), environmentId: options.env ?? "" };
    const made = await importFrom(api, String(args[0]), start);
    output.message(SessionSchema, made, () => sessionText(made));
  });
}

async function importFrom(
  api: Api,
  file: string,
  start: ReturnType<typeof newSession> & { environmentId: string },
): Promise<Session> {
  const source = file === "-" ? process.stdin : createReadStream(file, { highWaterMark: PIECE_BYTES });
  const call = api.sessions.importSession(COPY_WITHIN);
  try {
    await call.send({ kind: { case: "start", value: start } });
    for await (const chunk of source) await call.send({ kind: { case: "chunk", value: chunk as Buffer } });
  } catch (error) {
    // What the server refuses before everything is sent.
    if (isTendonError(error)) throw error;
    call.cancel();
    call.end().catch(() => {});
    throw asFileFailure(error, `cannot read ${file}`);
  }
  return (await call.end()).session!;
}

function asFileFailure(error: unknown, what: string): unknown {
  if (isTendonError(error)) return error;
  const code = (error as { code?: unknown }).code;
  return typeof code === "string" && /^E[A-Z]+$/.test(code)
    ? new StartupError(`${what}: ${(error as Error).message}`, EXIT_USAGE)
    : error;
}
