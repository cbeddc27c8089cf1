/** `tendon session verify`: whether a log is what it was. */
import { createReadStream } from "node:fs";
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import { EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import { BrokenLog, type OpenLog, openLog } from "../verify/open-log.ts";
import { readCheckpoints, readKeys } from "../verify/pins.ts";
import { type Kept, type Verdict, verifyLog } from "../verify/verify-log.ts";
import { parseRepeated } from "../words.ts";

/** A log of a million events takes a minute. */
const READ_WITHIN = { deadlineMs: 30 * 60_000 } as const;

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
    .description(
      "compute a tamper-evident log's hashes again, and check what servers signed; ends with 1 when it does not fit",
    )
    .option(
      "--against <file>",
      "also compare it with an export that was kept; its keys are then the only ones that count",
    )
    .option("--file <file>", "verify an export instead of a session; needs no server")
    .option(
      "--keys <file>",
      "keys that alone may have signed: a JWK set, or what --json printed once; may be given several times",
      parseRepeated,
    )
    .option("--checkpoints <file>", 'also compare it with checkpoints that "session watch --json" printed')
    .addHelpText(
      "after",
      `
Examples:
  tendon session export sesn_01… --output kept.ndjson
  tendon session verify sesn_01… --against kept.ndjson
  tendon session verify --file kept.ndjson --keys servers.json --json`,
    );
  onAction<VerifyOptions>(command, async ({ options, args, api, output }) => {
    const sessionId = args[0] === undefined ? undefined : String(args[0]);
    const open = opener(api, sessionId, options.file);
    const verdict = await verify(await open(), options);
    output.value(verdictJson(verdict), () => verdictText(verdict, options.file === undefined));
    return verdict.problems.length === 0 ? 0 : EXIT_FAILED;
  });
}

function opener(api: Api, sessionId: string | undefined, file: string | undefined): () => Promise<OpenLog> {
  if ((sessionId === undefined) === (file === undefined)) {
    throw new StartupError("name a session, or a file with --file", EXIT_USAGE);
  }
  return file === undefined ? () => openLog(chunksOf(api, sessionId!)) : () => openFile(file);
}

async function verify(log: OpenLog, options: VerifyOptions): Promise<Verdict> {
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
  return { ...verdict, ...judged(verdict, { pinnedKeys, log: against?.log }) };
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
      EXIT_FAILED,
    );
  }
  const own = kept.header.serverKey === "" || pins.length > 0 ? [] : [kept.header.serverKey];
  return { log: await openFile(file), keys: [...own, ...keys.map(({ publicKey }) => publicKey)] };
}

/** What the log alone does not say. */
function judged(verdict: Verdict, kept: Kept): Pick<Verdict, "problems" | "notes"> {
  const { header, keys } = verdict;
  const problems = [...verdict.problems];
  const notes = [...verdict.notes];
  if (header.chain === undefined && kept.log?.header.chain !== undefined) {
    problems.unshift({ position: 1, problem: "has no hash any more" });
  } else if (header.chain === undefined && kept.log === undefined) {
    problems.unshift({ position: 1, problem: "has no hash: the session is not tamper-evident" });
  }
  for (const { publicKey, checkpoints, isServers } of kept.pinnedKeys ? [] : keys) {
    if (!isServers) {
      notes.push(
        `${checkpoints} checkpoints are signed by ${publicKey}: the server that was asked has another key, so only the database vouches for it (see --keys)`,
      );
    }
  }
  return { problems, notes };
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

function verdictJson({ header, problems, notes, keys, ...verdict }: Verdict): object {
  const { sessionId, chain, serverKey } = header;
  return {
    session_id: sessionId,
    fits: problems.length === 0,
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

function verdictText(verdict: Verdict, isLive: boolean): string {
  const { header, events, checkpoints, signedUpTo, signedAt, problems, notes } = verdict;
  const lines = problems.map(({ position, problem }) => `position ${position}: ${problem}`);
  if (lines.length > 0)
    lines.unshift(`${header.sessionId} does not fit, from position ${problems[0]!.position} on`);
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
