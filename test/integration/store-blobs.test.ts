import { createHash, randomBytes } from "node:crypto";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { BlobStore } from "../../server/store/blobs.ts";
import { createBlobStore } from "../../server/store/postgres/blobs.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

const MIB = 1024 * 1024;

let database: TestDatabase;
let blobs: BlobStore;
let workspaceId: string;

beforeAll(async () => {
  database = await createTestDatabase();
  blobs = createBlobStore(database.pool());
});
beforeEach(async () => {
  workspaceId = newId("workspace");
  await database.pool().query("insert into workspaces (workspace_id, name) values ($1, $1)", [workspaceId]);
});
afterAll(() => database?.drop());

const digest = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
const write = (bytes: Uint8Array, owner = "file_1", more: object = {}) =>
  blobs.write({ workspaceId, owner, bytes: [bytes], maxBytes: 100 * MIB, ...more });

async function readAll(sha256: string, offsetBytes = 0): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const piece of blobs.read({ workspaceId, sha256, offsetBytes })) {
    expect(piece.length).toBeLessThanOrEqual(MIB);
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

async function reasonOf(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => "it succeeded",
    (thrown: unknown) => thrown,
  );
  return isTendonError(error) ? error.reason : String(error);
}

async function rows(): Promise<{ blobs: number; chunks: number; reference: number }> {
  const { rows: found } = await database.pool().query<{ blobs: number; chunks: number; reference: number }>(
    `select (select count(*) from blobs where workspace_id = $1) as blobs,
       (select count(*) from blob_chunks join blobs using (blob_id) where workspace_id = $1) as chunks,
       (select count(*) from blob_references join blobs using (blob_id) where workspace_id = $1) as reference`,
    [workspaceId],
  );
  return found[0]!;
}

async function purgeAll(untouchedMs = 0): Promise<void> {
  while (await blobs.purge(untouchedMs));
}

test("bytes of any size come back as they were, whole and from any offset, whatever pieces they came in", async () => {
  const bytes = randomBytes(3 * MIB + 12_345);
  async function* pieces() {
    for (let at = 0; at < bytes.length; at += 700_001) yield bytes.subarray(at, at + 700_001);
  }
  const record = await blobs.write({ workspaceId, owner: "file_1", bytes: pieces(), maxBytes: 10 * MIB });
  expect(record).toEqual({ workspaceId, sha256: digest(bytes), sizeBytes: bytes.length });
  expect(await rows()).toEqual({ blobs: 1, chunks: 4, reference: 1 });
  for (const offset of [0, 1, MIB - 1, MIB, 2 * MIB + 17, bytes.length - 1, bytes.length]) {
    expect((await readAll(record.sha256, offset)).equals(bytes.subarray(offset))).toBe(true);
  }
  const empty = await write(new Uint8Array(0));
  expect((await readAll(empty.sha256)).length).toBe(0);
});

test("the same bytes are kept and counted once, also when many write them at once, and for each workspace by itself", async () => {
  const bytes = randomBytes(MIB + 1);
  await Promise.all(Array.from({ length: 6 }, (_, n) => write(bytes, `file_${n}`)));
  await purgeAll();
  expect(await rows()).toEqual({ blobs: 1, chunks: 2, reference: 6 });
  expect(await blobs.usage(workspaceId)).toEqual({ bytes: MIB + 1, limitBytes: undefined });
  const elsewhere = newId("workspace");
  expect(await blobs.find(elsewhere, digest(bytes))).toBeUndefined();
  expect(await blobs.refer({ workspaceId: elsewhere, sha256: digest(bytes), owner: "x" })).toBe(false);
});

test("bytes go with their last reference: uncounted and unreadable at once, erased bit by bit", async () => {
  const bytes = randomBytes(2 * MIB);
  const { sha256 } = await write(bytes, "sesn_1");
  expect(await blobs.refer({ workspaceId, sha256, owner: "sesn_2" })).toBe(true);
  await blobs.release({ workspaceId, owner: "sesn_1" });
  expect(await blobs.find(workspaceId, sha256)).toBeDefined();
  const reading = blobs.read({ workspaceId, sha256 })[Symbol.asyncIterator]();
  await reading.next();
  await blobs.release({ workspaceId, owner: "sesn_2", sha256 });
  expect(await reasonOf(reading.next())).toBe("NOT_FOUND");
  expect(await blobs.find(workspaceId, sha256)).toBeUndefined();
  expect(await blobs.refer({ workspaceId, sha256, owner: "sesn_3" })).toBe(false);
  expect(await blobs.usage(workspaceId)).toMatchObject({ bytes: 0 });
  await purgeAll();
  expect(await rows()).toEqual({ blobs: 0, chunks: 0, reference: 0 });
  // It may come again.
  await write(bytes);
  expect((await readAll(sha256)).equals(bytes)).toBe(true);
});

test("owners that come and go at once leave either the bytes with an owner or nothing", async () => {
  const bytes = randomBytes(200_000);
  await Promise.all(
    Array.from({ length: 12 }, async (_, n) => {
      for (let round = 0; round < 5; round++) {
        await write(bytes, `file_${n}`);
        await blobs.release({ workspaceId, owner: `file_${n}` });
      }
    }),
  );
  await purgeAll();
  expect(await rows()).toEqual({ blobs: 0, chunks: 0, reference: 0 });
  expect(await blobs.usage(workspaceId)).toMatchObject({ bytes: 0 });
});

test("a workspace keeps no more bytes than its limit, however many write at once", async () => {
  await database
    .pool()
    .query(`update workspaces set limits = '{"blobBytes":"1000000"}' where workspace_id = $1`, [workspaceId]);
  const outcomes = await Promise.all(
    Array.from({ length: 5 }, (_, n) => reasonOf(write(randomBytes(400_000), `file_${n}`))),
  );
  expect(outcomes.filter((outcome) => outcome === "it succeeded")).toHaveLength(2);
  expect(outcomes.filter((outcome) => outcome === "LIMIT_EXCEEDED")).toHaveLength(3);
  expect(await blobs.usage(workspaceId)).toEqual({ bytes: 800_000, limitBytes: 1_000_000 });
  await purgeAll();
  expect(await rows()).toMatchObject({ blobs: 2 });
});

test("what is too large, has another digest or breaks off leaves nothing; an owner without bytes gives up nothing", async () => {
  expect(await reasonOf(write(randomBytes(2 * MIB), "f", { maxBytes: MIB }))).toBe("MESSAGE_TOO_LARGE");
  expect(await reasonOf(write(randomBytes(10), "f", { sha256: "0".repeat(64) }))).toBe("INVALID_FIELD");
  async function* broken() {
    yield randomBytes(2 * MIB);
    throw new Error("the caller went away");
  }
  expect(
    await reasonOf(blobs.write({ workspaceId, owner: "f", bytes: broken(), maxBytes: 9 * MIB })),
  ).toContain("went away");
  expect(
    await reasonOf(blobs.write({ workspaceId: "wrkspc_none", owner: "f", bytes: [], maxBytes: 1 })),
  ).toBe("NOT_FOUND");
  await blobs.release({ workspaceId, owner: "f" });
  await purgeAll(3_600_000);
  expect(await rows()).toEqual({ blobs: 0, chunks: 0, reference: 0 });
});
