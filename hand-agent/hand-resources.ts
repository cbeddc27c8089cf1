/** Gives a new hand what it was asked for with, beyond what its driver puts there: stored files, then setup commands. */
import { createHash } from "node:crypto";
import { resolve } from "node:path";
import type { ProvisionCommand } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { StoredFile } from "../proto/gen/tendon/v1/hand_pb.js";
import { FileError, type Hand, HandError } from "./drivers/driver.ts";
import { runSetup } from "./setup-commands.ts";

/** The bytes of a file that the server holds. */
export type ReadStoredFile = (
  handId: string,
  sha256: string,
  signal: AbortSignal,
) => AsyncIterable<Uint8Array>;

// biome-ignore lint/correctness/useYield: refuses before the first byte
export async function* noStoredFiles(): AsyncGenerator<Uint8Array> {
  throw new HandError("the server's files cannot be read");
}

/** Throws HandError with what could not be given, for people. */
export async function giveResources(
  hand: Hand,
  { handId, environment, resources }: ProvisionCommand,
  { readStored, signal }: { readStored: ReadStoredFile; signal: AbortSignal },
): Promise<void> {
  for (const { kind } of resources) {
    if (kind.case !== "storedFile") continue;
    const bytes = readStored(handId, kind.value.sha256, signal);
    await giveFile(hand, kind.value, bytes, signal);
  }
  // One from a warm pool has been set up already.
  if (hand.isSetUp !== true) await runSetup(hand, environment?.setup ?? [], signal);
  const own = resources.flatMap(({ kind }) => (kind.case === "setupCommand" ? [kind.value.command] : []));
  await runSetup(hand, own, signal, "of the request");
}

async function giveFile(
  hand: Hand,
  { path, sha256, executable }: StoredFile,
  bytes: AsyncIterable<Uint8Array>,
  signal: AbortSignal,
): Promise<void> {
  const hash = createHash("sha256");
  async function* whole() {
    for await (const chunk of bytes) {
      hash.update(chunk);
      yield chunk;
    }
    if (hash.digest("hex") !== sha256) throw new HandError("other bytes have come than it has");
  }
  try {
    const mode = executable ? 0o755 : 0o644;
    await hand.writeFile(resolve(hand.workdir, path), whole(), { mode, signal });
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    const cause = error instanceof FileError && error.cause instanceof Error ? error.cause : (error as Error);
    throw new HandError(`the file ${path} could not be given: ${cause.message}`, { cause: error });
  }
}
