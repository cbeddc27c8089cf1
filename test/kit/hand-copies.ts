/** Copies into and out of hands as a caller makes them, looked at byte by byte. */
import { createHash } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "../../kit/rpc/client.ts";
import { readTar } from "../../kit/tar/read-tar.ts";
import type { TarEntry } from "../../kit/tar/tar-entry.ts";
import { TAR_END, tarHeader, tarPadding } from "../../kit/tar/write-tar.ts";
import type {
  CopyOutRequestSchema,
  CopyTargetSchema,
  HandService,
} from "../../proto/gen/tendon/v1/hand_service_pb.js";

type Hands = Client<typeof HandService>;

export const sha256Of = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

export async function copyIn(
  hands: Hands,
  target: MessageInitShape<typeof CopyTargetSchema>,
  bytes: Uint8Array,
  pieceBytes = 256 * 1024,
) {
  const call = hands.copyIn();
  try {
    await call.send({ kind: { case: "target", value: target } });
    for (let at = 0; at < bytes.length; at += pieceBytes) {
      await call.send({ kind: { case: "chunk", value: bytes.subarray(at, at + pieceBytes) } });
    }
    const end = { sizeBytes: BigInt(bytes.length), sha256: sha256Of(bytes) };
    await call.send({ kind: { case: "end", value: end } });
  } catch {
    // Refused before all was sent: the end says why.
  }
  return call.end();
}

export async function copyOut(hands: Hands, request: MessageInitShape<typeof CopyOutRequestSchema>) {
  const pieces: Uint8Array[] = [];
  for await (const { chunk, end } of hands.copyOut(request)) {
    pieces.push(chunk);
    if (end === undefined) continue;
    const bytes = Buffer.concat(pieces);
    if (end.sha256 !== sha256Of(bytes) || Number(end.sizeBytes) !== bytes.length)
      throw new Error("other bytes");
    return bytes;
  }
  throw new Error("the copy ended without `end`");
}

export type Packed = readonly [name: string, content: string | Uint8Array, extra?: Partial<TarEntry>];

/** Entries are files unless they say otherwise. */
export function pack(...entries: Packed[]): Buffer {
  const parts = entries.flatMap(([name, content, extra]) => {
    const bytes = Buffer.from(content as Uint8Array);
    const header = tarHeader({
      name,
      type: "file",
      size: bytes.length,
      mode: 0o644,
      mtimeMs: 0,
      linkTarget: "",
      ...extra,
    });
    return [header, bytes, tarPadding(bytes.length)];
  });
  return Buffer.concat([...parts, TAR_END]);
}

/** "name type mode content" of every entry, sorted. */
export async function unpack(archive: Uint8Array): Promise<string[]> {
  const found: string[] = [];
  for await (const { entry, content } of readTar(once(archive))) {
    const pieces: Uint8Array[] = [];
    for await (const piece of content) pieces.push(piece);
    const text = entry.type === "symlink" ? `-> ${entry.linkTarget}` : Buffer.concat(pieces).toString();
    found.push(`${entry.name} ${entry.type} ${entry.mode.toString(8)} ${text}`.trim());
  }
  return found.sort();
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}
