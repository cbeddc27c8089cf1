/** Skills as zip archives. What an archive says of itself is not believed: sizes are counted as bytes come. */
import { promisify } from "node:util";
import { type Entry, fromBuffer, type ZipFile } from "yauzl";
import { ZipFile as ZipWriter } from "yazl";
import { invalidField, messageOf, TendonError } from "../../kit/errors.ts";
import type { SkillVersion } from "../../proto/gen/tendon/v1/skill_pb.js";
import type { BlobStore } from "../store/blobs.ts";
import { MAX_SKILL_BYTES, MAX_SKILL_FILES, skillTooLarge, type UploadedSkillFile } from "./rules.ts";

const openArchive = promisify(
  (bytes: Buffer, done: (error: Error | null, zip: ZipFile) => void) =>
    void fromBuffer(bytes, { lazyEntries: true, strictFileNames: true }, done),
);

/** Throws INVALID_FIELD, MESSAGE_TOO_LARGE. */
export async function unpackSkill(bytes: Uint8Array): Promise<UploadedSkillFile[]> {
  try {
    const zip = await openArchive(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength));
    return await filesIn(zip);
  } catch (error) {
    if (error instanceof TendonError) throw error;
    throw invalidField("files", `is no zip archive that can be read: ${messageOf(error)}`);
  }
}

async function filesIn(zip: ZipFile): Promise<UploadedSkillFile[]> {
  const files: UploadedSkillFile[] = [];
  let left = MAX_SKILL_BYTES;
  for await (const entry of entriesOf(zip)) {
    if (entry.fileName.endsWith("/")) continue;
    const mode = entry.externalFileAttributes >>> 16;
    const kind = mode & 0o170000;
    if (kind !== 0 && kind !== 0o100000)
      throw invalidField("files", `"${entry.fileName}" is no regular file`);
    if (files.length >= MAX_SKILL_FILES) throw invalidField("files", `at most ${MAX_SKILL_FILES} files`);
    const bytes = await readEntry(zip, entry, left);
    left -= bytes.byteLength;
    files.push({ path: entry.fileName, bytes, executable: (mode & 0o111) !== 0 });
  }
  return files;
}

async function* entriesOf(zip: ZipFile): AsyncGenerator<Entry> {
  try {
    for (;;) {
      const entry = await new Promise<Entry | undefined>((resolve, reject) => {
        zip.once("entry", resolve);
        zip.once("end", () => resolve(undefined));
        zip.once("error", reject);
        zip.readEntry();
      });
      zip.removeAllListeners();
      if (entry === undefined) return;
      yield entry;
    }
  } finally {
    zip.removeAllListeners();
    zip.on("error", () => {});
    zip.close();
  }
}

async function readEntry(zip: ZipFile, entry: Entry, most: number): Promise<Buffer> {
  const stream = await promisify(zip.openReadStream.bind(zip) as ReadStreamOf)(entry);
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    bytes += chunk.byteLength;
    if (bytes > most) throw skillTooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

type ReadStreamOf = (
  entry: Entry,
  done: (error: Error | null, stream: NodeJS.ReadableStream) => void,
) => void;

/** The same bytes for the same version. */
export async function* packSkill(
  { name, files, createdAt }: SkillVersion,
  blobs: Pick<BlobStore, "read">,
  workspaceId: string,
): AsyncGenerator<Uint8Array> {
  const zip = new ZipWriter();
  const mtime = new Date(Number(createdAt?.seconds ?? 0n) * 1_000);
  const add = async () => {
    for (const { path, sha256, executable } of files) {
      const chunks: Uint8Array[] = [];
      for await (const chunk of blobs.read({ workspaceId, sha256 })) chunks.push(chunk);
      zip.addBuffer(Buffer.concat(chunks), `${name}/${path}`, {
        mtime,
        mode: executable ? 0o100755 : 0o100644,
      });
    }
    zip.end();
  };
  const added = add();
  // Whoever reads hears of it.
  added.catch((error) => (zip.outputStream as unknown as { destroy(error: unknown): void }).destroy(error));
  for await (const chunk of zip.outputStream as AsyncIterable<Buffer>) yield chunk;
  await added;
}
