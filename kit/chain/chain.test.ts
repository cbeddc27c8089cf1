import { createHash, generateKeyPairSync } from "node:crypto";
import { expect, test } from "vitest";
import { signingKeyFromPem } from "../sign/key-file.ts";
import { isSigned, signCheckpoint } from "./checkpoint.ts";
import { eventHash, framed, type HashedEvent, NEW_CHAIN, originHash, sha256Hex } from "./event-hash.ts";

const newKey = () =>
  signingKeyFromPem(
    generateKeyPairSync("ed25519").privateKey.export({ type: "pkcs8", format: "pem" }) as string,
  );

const event: HashedEvent = {
  id: "sevt_1",
  position: 1,
  type: "user.message",
  createdAt: new Date("2030-01-31T12:00:00.250Z"),
  threadId: "",
  payloadSha256: sha256Hex("{}"),
  internalSha256: undefined,
};

test("the hash of an event is that of the documented bytes", () => {
  const start = createHash("sha256").update("14:tendon.chain.1,6:sesn_1,3:new,0:,1:0,0:,").digest("hex");
  expect(originHash("sesn_1", NEW_CHAIN)).toBe(start);
  const bytes =
    `14:tendon.event.1,64:${start},6:sesn_1,1:1,6:sevt_1,12:user.message,13:1896091200250,0:,` +
    "64:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a,0:,";
  expect(eventHash(start, "sesn_1", event)).toBe(createHash("sha256").update(bytes).digest("hex"));
});

test("every field counts, wherever one ends and the next begins", () => {
  const changes: Partial<HashedEvent>[] = [
    {},
    { id: "sevt_2" },
    { position: 2 },
    { type: "user.messages" },
    { createdAt: new Date("2030-01-31T12:00:00.251Z") },
    { threadId: "sthr_1" },
    { payloadSha256: sha256Hex("{ }") },
    { internalSha256: sha256Hex("") },
    { internalSha256: sha256Hex("{}") },
    { id: "sevt_1,12:user", type: ".message" },
  ];
  const hashes = changes.map((change) => eventHash(sha256Hex("a"), "sesn_1", { ...event, ...change }));
  hashes.push(eventHash(sha256Hex("b"), "sesn_1", event), eventHash(sha256Hex("a"), "sesn_2", event));
  expect(new Set(hashes).size).toBe(hashes.length);
  expect(framed(["a", "bc"])).not.toBe(framed(["ab", "c"]));
  expect(framed(["ä"])).toBe("2:ä,");
});

test("a chain that begins as a copy has another start for each thing it may have been copied from", () => {
  const copy = { kind: "fork", sessionId: "sesn_0", position: 7, hash: sha256Hex("x") } as const;
  const starts = [
    NEW_CHAIN,
    copy,
    { ...copy, kind: "import" as const },
    { ...copy, sessionId: "sesn_9" },
    { ...copy, position: 8 },
    { ...copy, hash: "" },
  ].map((origin) => originHash("sesn_1", origin));
  expect(new Set(starts).size).toBe(starts.length);
});

test("a checkpoint is signed as a whole: no part of it can be another's", async () => {
  const [key, other] = await Promise.all([newKey(), newKey()]);
  const facts = {
    sessionId: "sesn_1",
    position: 4,
    hash: sha256Hex("x"),
    signedAt: new Date(1_900_000_000_000),
  };
  const checkpoint = signCheckpoint(key, facts);
  expect(checkpoint).toMatchObject({ publicKey: key.publicKey.x });
  expect(checkpoint.signature).toHaveLength(64);
  expect(isSigned(checkpoint)).toBe(true);
  for (const change of [
    { sessionId: "sesn_2" },
    { position: 5 },
    { hash: sha256Hex("y") },
    { signedAt: new Date(1_900_000_000_001) },
    { publicKey: other.publicKey.x },
    { publicKey: "" },
    { publicKey: "no key" },
    { signature: signCheckpoint(other, facts).signature },
    { signature: new Uint8Array(64) },
    { signature: new Uint8Array(0) },
  ]) {
    expect(isSigned({ ...checkpoint, ...change })).toBe(false);
  }
});
