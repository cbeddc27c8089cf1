/** `tendon session verify`: whether a log is what it was. */
import { createReadStream } from "node:fs";
import type { Command } from "commander";
import { isTendonError } from "../../kit/errors.ts";
import type { LogHeader } from "../../kit/log-file/log-lines.ts";
import { StartupError } from "../../kit/program.ts";
import { CALL_WITHIN, EXIT_FAILED, EXIT_USAGE, type Handler, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import type { Problem } from "../verify/log-verifier.ts";
import { BrokenLog, type OpenLog, openLog } from "../verify/open-log.ts";
import { readCheckpoints, readKeys } from "../verify/pins.ts";
import { type Verdict, verifyLog } from "../verify/verify-log.ts";
import { parseRepeated } from "../words.ts";

/** A log of a million events takes a minute. */
const READ_WITHIN = { deadlineMs: 30 * 60_000 } as const;

/** Neither "fits" nor "does not fit": there is nothing to verify. */
const EXIT_NOT_TAMPER_EVIDENT = 3;
/** What kept it from judging: no server, no such session, not allowed. */
const EXIT_NOT_JUDGED = 4;

const PIECE_BYTES = 256 * 1024;

interface VerifyOptions {
  against?: string;
  file?: string;
  keys?: string[];
  checkpoints?: string;
}

export function addVerify(session: Command): void {
  const command = session
    .command("verify [session]")
    .description("compute a tamper-evident log's hashes again, and check what servers signed")
    .option(
      "--against <file>",
      "also compare it with an export that was kept; its keys are then the only ones that count",
    )
    .option("--file <file>", "verify an export instead of a session; needs no server")
    .option(
      "--keys <file>",
      "keys that alone may have signed, in time and up to the end: a JWK set, or what --json printed once; may be given several times",
      parseRepeated,
    )
    .option("--checkpoints <file>", 'also compare it with checkpoints that "session watch --json" printed')
    .addHelpText(
      "after",
      `
Ends with 0 when the log fits, 1 when it does not, 2 for wrong usage and files that cannot be used, 3 when the session is not
tamper-evident and nothing was kept of it, 4 when something else kept it from judging (no server, no such session).

Without --keys, --against or --checkpoints, signatures of keys that the server does not have are only noted, and with --file all
of them: another server may have signed, and the database cannot vouch for that. Somebody who removes all hashes makes a session
look as if it never had any: keep an export, and give it with --against.

Examples:
  tendon session export sesn_01… --output kept.ndjson
  tendon session verify sesn_01… --against kept.ndjson
  tendon session verify --file kept.ndjson --keys servers.json --json`,
    );
  const run: Handler<VerifyOptions> = async ({ options, args, api, output }) => {
    const sessionId = args[0] === undefined ? undefined : String(args[0]);
    const open = opener(api, sessionId, options.file);
    const verdict = await verify(api, await open(), options);
    output.value(verdictJson(verdict), () => verdictText(verdict, options.file === undefined));
    if (verdict.problems.length > 0) return EXIT_FAILED;
    return isJudged(verdict) ? 0 : EXIT_NOT_TAMPER_EVIDENT;
  };
  onAction<VerifyOptions>(command, run, { exitFailed: EXIT_NOT_JUDGED });
}

interface Judged extends Verdict {
  /** Compared with a log that was kept. */
  readonly isCompared: boolean;
}

const isJudged = ({ header, isCompared }: Judged) => header.chain !== undefined || isCompared;

function opener(api: Api, sessionId: string | undefined, file: string | undefined): () => Promise<OpenLog> {
  if ((sessionId === undefined) === (file === undefined)) {
    throw new StartupError("name a session, or a file with --file", EXIT_USAGE);
  }
  return file === undefined ? () => openSession(api, sessionId!) : () => openFile(file);
}

async function openSession(api: Api, sessionId: string): Promise<OpenLog> {
  try {
    return await openLog(chunksOf(api, sessionId));
  } catch (error) {
    if (!(error instanceof BrokenLog)) throw error;
    throw new StartupError(
      `${sessionId} does not fit: what the server gives is no log: ${error.message}`,
      EXIT_FAILED,
    );
  }
}

async function verify(api: Api, log: OpenLog, options: VerifyOptions): Promise<Judged> {
  const { sessionId } = log.header;
  const pins = (options.keys ?? []).flatMap(readKeys);
  const checkpoints =
    options.checkpoints === undefined ? [] : readCheckpoints(options.checkpoints, sessionId);
  pins.push(...checkpoints.map(({ publicKey }) => publicKey));
  const against =
    options.against === undefined ? undefined : await readKept(options.against, sessionId, pins);
  pins.push(...(against?.keys ?? []));
  const pinnedKeys = pins.length === 0 ? undefined : new Set(pins);
  const isStrict = options.keys !== undefined;
  const verdict = await verifyLog(log, { log: against?.log, checkpoints, pinnedKeys, isStrict });
  const judged = { ...verdict, isCompared: against !== undefined };
  const isFile = options.file !== undefined;
  const problems = [...hashesThatAreGone(judged, against?.log.header), ...verdict.problems];
  if (!isJudged(judged) && !isFile && problems.length === 0 && (await isWanted(api, sessionId))) {
    const problem =
      "has no hash, while its workspace wants them: the session was made before that, or somebody removed them";
    problems.push({ position: 1, problem });
  }
  const notes = [...verdict.notes, ...(pinnedKeys ? [] : keyNotes(verdict, isFile))];
  return { ...judged, problems, notes };
}

/** Whether the session's workspace makes sessions tamper-evident; false for whoever may not know. */
async function isWanted(api: Api, sessionId: string): Promise<boolean> {
  try {
    const { session } = await api.sessions.getSession({ sessionId }, CALL_WITHIN);
    const { workspace } = await api.admin.getWorkspace({ workspaceId: session!.workspaceId }, CALL_WITHIN);
    return workspace!.tamperEvident;
  } catch (error) {
    if (isTendonError(error, "ROLE_NOT_ALLOWED") || isTendonError(error, "NOT_FOUND")) return false;
    throw error;
  }
}

/** A kept log has to fit itself before anything is compared with it. */
async function readKept(file: string, sessionId: string, pins: readonly string[]) {
  const kept = await openFile(file);
  if (kept.header.sessionId !== sessionId) {
    throw new StartupError(`${file} is a log of ${kept.header.sessionId}, not of ${sessionId}`, EXIT_USAGE);
  }
  const { problems, keys } = await verifyLog(kept, {
    pinnedKeys: pins.length === 0 ? undefined : new Set(pins),
  });
  const [first] = problems;
  if (first) {
    throw new StartupError(
      `${file} does not fit itself: position ${first.position} ${first.problem}`,
      EXIT_USAGE,
    );
  }
  const own = kept.header.serverKey === "" || pins.length > 0 ? [] : [kept.header.serverKey];
  return { log: await openFile(file), keys: [...own, ...keys.map(({ publicKey }) => publicKey)] };
}

function hashesThatAreGone({ header }: Verdict, kept: LogHeader | undefined): Problem[] {
  if (header.chain !== undefined || kept?.chain === undefined) return [];
  return [{ position: 1, problem: "has no hash any more" }];
}

/** What the log alone does not say of the keys that signed it. */
function keyNotes({ header, keys }: Verdict, isFile: boolean): string[] {
  if (header.chain === undefined) return [];
  if (isFile)
    return ["the file vouches for itself: nothing but itself says whose keys signed it (see --keys)"];
  return keys
    .filter(({ isServers }) => !isServers)
    .map(
      ({ publicKey, checkpoints }) =>
        `${checkpoints} checkpoints are signed by ${publicKey}: the server that was asked has another key, so only the database vouches for it (see --keys)`,
    );
}

async function* chunksOf(api: Api, sessionId: string): AsyncGenerator<Uint8Array> {
  for await (const { chunk } of api.sessions.exportSession({ sessionId }, READ_WITHIN)) yield chunk;
}

async function openFile(file: string): Promise<OpenLog> {
  try {
    return await openLog(
      file === "-" ? process.stdin : createReadStream(file, { highWaterMark: PIECE_BYTES }),
    );
  } catch (error) {
    if (error instanceof BrokenLog)
      throw new StartupError(`${file} is no exported log: ${error.message}`, EXIT_USAGE);
    const { code, message } = error as { code?: unknown; message?: unknown };
    if (typeof code === "string") throw new StartupError(`cannot read ${file}: ${message}`, EXIT_USAGE);
    throw error;
  }
}

function verdictJson(all: Judged): object {
  const { header, problems, notes, keys, ...verdict } = all;
  const { sessionId, chain, serverKey } = header;
  return {
    session_id: sessionId,
    fits: problems.length === 0 && isJudged(all),
    tamper_evident: chain !== undefined,
    events: verdict.events,
    checkpoints: verdict.checkpoints,
    signed_up_to: verdict.signedUpTo,
    ...(verdict.signedAt && { signed_at: verdict.signedAt }),
    ...(chain && { hash: chain.hash, origin: chain.origin.kind }),
    ...(chain && chain.origin.sessionId !== "" && { origin_session_id: chain.origin.sessionId }),
    problems,
    notes,
    ...(serverKey !== "" && { server_key: serverKey }),
    keys: keys.map(({ publicKey, firstPosition, checkpoints, isServers }) => ({
      kty: "OKP",
      crv: "Ed25519",
      x: publicKey,
      first_position: firstPosition,
      checkpoints,
      is_servers: isServers,
    })),
  };
}

function verdictText(verdict: Judged, isLive: boolean): string {
  const { header, events, checkpoints, signedUpTo, signedAt, problems, notes } = verdict;
  const lines = problems.map(({ position, problem }) => `position ${position}: ${problem}`);
  if (lines.length > 0)
    lines.unshift(`${header.sessionId} does not fit, from position ${problems[0]!.position} on`);
  else if (!isJudged(verdict)) lines.push(`${header.sessionId} is not tamper-evident: nothing to verify`);
  else lines.push(`${header.sessionId} fits: ${events} events${isLive ? " so far" : ""}`);
  if (header.chain) {
    lines.push(
      signedUpTo === 0
        ? "nothing of it is signed"
        : `signed up to position ${signedUpTo} (${checkpoints} checkpoints, the newest of ${signedAt!.toISOString()})`,
    );
  }
  return [...lines, ...notes.map((note) => `note: ${note}`)].join("\n");
}
