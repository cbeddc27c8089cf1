/** What somebody kept of sessions: keys that may have signed, and checkpoints as `session watch --json` prints them. */
import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { type Checkpoint, isSigned } from "../../kit/chain/checkpoint.ts";
import { StartupError } from "../../kit/program.ts";
import { CheckpointSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { EXIT_USAGE } from "../command.ts";
import { readText } from "../read-file.ts";

/** A JWK set, which is also what `session verify --json` prints. */
export function readKeys(file: string): string[] {
  const { keys } = objectOf(readText(file), file);
  const known = Array.isArray(keys) ? keys.map((key: { crv?: unknown; x?: unknown }) => key) : [];
  const texts = known.map((key) => (key?.crv === "Ed25519" && typeof key.x === "string" ? key.x : ""));
  if (texts.length > 0 && !texts.includes("")) return texts;
  throw new StartupError(
    `${file} holds no Ed25519 keys: {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": …}]}`,
    EXIT_USAGE,
  );
}

/** Lines that hold something else are passed over. */
export function readCheckpoints(file: string, sessionId: string): Checkpoint[] {
  const found: Checkpoint[] = [];
  for (const [index, line] of readText(file).split("\n").entries()) {
    if (line.trim() === "") continue;
    const { checkpoint } = objectOf(line, `${file}, line ${index + 1},`);
    if (checkpoint === undefined) continue;
    const kept = checkpointOf(checkpoint as JsonValue);
    if (!kept || !isSigned(kept)) {
      throw new StartupError(`${file}, line ${index + 1}, holds a checkpoint that nobody signed`, EXIT_USAGE);
    }
    if (kept.sessionId === sessionId) found.push(kept);
  }
  if (found.length > 0) return found;
  throw new StartupError(`${file} holds no checkpoint of ${sessionId}`, EXIT_USAGE);
}

function checkpointOf(value: JsonValue): Checkpoint | undefined {
  try {
    const { sessionId, position, hash, signedAt, publicKey, signature } = fromJson(CheckpointSchema, value);
    const key = Buffer.from(publicKey).toString("base64url");
    const at = timestampDate(signedAt!);
    return { sessionId, position: Number(position), hash, signedAt: at, publicKey: key, signature };
  } catch {
    return undefined;
  }
}

function objectOf(text: string, where: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // Said below.
  }
  throw new StartupError(`${where} is no JSON object`, EXIT_USAGE);
}
