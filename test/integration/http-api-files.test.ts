/** Files over HTTP, with the client that applications use, against the built server. */
import { createHash, randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { request as httpRequest } from "node:http";
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import type { Platform } from "../kit/platform.ts";

let platform: Platform;
let client: Anthropic;

beforeAll(async () => {
  platform = await startDatabasePlatform({ programs: [] });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
}, 120_000);

afterAll(() => platform?.stop());

const MIB = 1024 * 1024;
const upload = (text: string, name = "a.txt", type = "text/plain") =>
  toFile(Buffer.from(text), name, { type }).then((file) => client.beta.files.upload({ file }));
const textOf = async (id: string) => (await client.beta.files.download(id)).text();
const all = async <T>(pages: AsyncIterable<T>) => {
  const items: T[] = [];
  for await (const item of pages) items.push(item);
  return items;
};
/** Most memory that the server has used, in MiB. */
async function peakMiB(): Promise<number> {
  const status = await readFile(`/proc/${platform.program("server").pid}/status`, "utf8");
  return Number(/VmHWM:\s+(\d+) kB/.exec(status)![1]) / 1024;
}

async function* blocks(count: number, hash: ReturnType<typeof createHash>) {
  for (let n = 0; n < count; n += 1) {
    const block = randomBytes(MIB);
    hash.update(block);
    yield block;
  }
}

/** A body sent as it is, in pieces. */
function post(
  headers: Record<string, string>,
  body: string | Buffer = "",
): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    const url = `${platform.url}/v1/files`;
    const request = httpRequest(url, {
      method: "POST",
      headers: { "x-api-key": platform.adminKey, ...headers },
    });
    request.on("response", async (response) => {
      let text = "";
      for await (const chunk of response) text += chunk;
      resolve({ status: response.statusCode ?? 0, body: text });
      request.destroy();
    });
    request.on("error", reject);
    request.write(body);
    if (headers["content-length"] === undefined) request.end();
  });
}

const form = (...parts: string[]) => `${parts.map((part) => `--b\r\n${part}\r\n`).join("")}--b--\r\n`;
const multipart = { "content-type": "multipart/form-data; boundary=b" };

describe("files over HTTP", () => {
  it("are uploaded, listed, read and deleted; a deleted one is not found, and its bytes are gone", async () => {
    const file = await upload("hello, file", "grüße.txt");
    expect(file).toMatchObject({
      type: "file",
      id: expect.stringMatching(/^file_/),
      filename: "grüße.txt",
      mime_type: "text/plain",
      size_bytes: 11,
      scope: null,
      expires_at: null,
      downloadable: true,
    });
    expect(await client.beta.files.retrieveMetadata(file.id)).toEqual(file);
    expect(await textOf(file.id)).toBe("hello, file");
    const same = await upload("hello, file", "other.txt");
    const before = await storedBytes();
    expect(await client.beta.files.delete(same.id)).toEqual({ id: same.id, type: "file_deleted" });
    expect(await storedBytes()).toBe(before);
    expect(await textOf(file.id)).toBe("hello, file");
    await client.beta.files.delete(file.id);
    expect(await storedBytes()).toBe(before - 11n);
    const { files } = client.beta;
    for (const ask of ["retrieveMetadata", "download", "delete"] as const)
      await expect(files[ask](file.id)).rejects.toMatchObject({
        status: 404,
        error: { error: { type: "not_found_error" } },
      });
  });

  it("come in pages, and by their ids", async () => {
    const made = [await upload("1"), await upload("2"), await upload("3")];
    const listed = await all(client.beta.files.list({ limit: 2 }));
    expect(listed.map(({ id }) => id)).toEqual(made.map(({ id }) => id).toReversed());
    const { data } = await client.beta.files.list({ ids: [made[0]!.id, "file_none", made[2]!.id] });
    expect(data.map(({ id }) => id).toSorted()).toEqual([made[0]!.id, made[2]!.id].toSorted());
    for (const { id } of made) await client.beta.files.delete(id);
  });

  it("stream in and out byte for byte, while the server holds little of them", async () => {
    const before = await peakMiB();
    const hash = createHash("sha256");
    const stream = ReadableStream.from(blocks(192, hash));
    const large = await client.beta.files.upload({ file: await toFile(new Response(stream), "large.bin") });
    expect(large.size_bytes).toBe(192 * MIB);
    const back = createHash("sha256");
    const { body } = await client.beta.files.download(large.id);
    for await (const chunk of body!) back.update(chunk);
    expect(back.digest("hex")).toBe(hash.digest("hex"));
    expect((await peakMiB()) - before).toBeLessThan(160);
    await client.beta.files.delete(large.id);
  });

  it("expire when they were told to", async () => {
    const file = await toFile(Buffer.from("short"), "s.txt");
    const kept = await client.beta.files.upload({ file, expires_in_seconds: 3600 });
    expect(Date.parse(kept.expires_at!) - Date.parse(kept.created_at)).toBe(3_600_000);
    await client.beta.files.delete(kept.id);
  });

  it("are refused with the reason when they are wrong, and nothing of them is stored", async () => {
    const files = await all(client.beta.files.list());
    const before = await storedBytes();
    const part = 'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nsome bytes';
    const named = (name: string) => part.replace("a.txt", name);
    const field = (name: string, value: string) =>
      `Content-Disposition: form-data; name="${name}"\r\n\r\n${value}`;
    const wrong: [Record<string, string>, string, number][] = [
      [{ "content-type": "application/json" }, '{"file":"x"}', 400],
      [{ "content-type": "multipart/form-data" }, form(part), 400],
      [multipart, form(part).slice(0, -20), 400],
      [multipart, form(field("expires_in_seconds", "3600")), 400],
      [multipart, form(part, field("expires_in_seconds", "60")), 400],
      [multipart, form(part, field("expires_in_seconds", "soon")), 400],
      [multipart, form(part, field("purpose", "x")), 400],
      [multipart, form(part, part), 400],
      [multipart, form(part.replace('name="file"', 'name="files"')), 400],
      [multipart, form(named("up/..")), 400],
      [multipart, form(named(".")), 400],
      [{ ...multipart, "content-length": String(600 * MIB) }, form(part), 413],
    ];
    for (const [headers, body, status] of wrong) {
      const answer = await post(headers, body);
      expect([answer.status, body, JSON.parse(answer.body).type]).toEqual([status, body, "error"]);
    }
    for (const bad of [{ ids: ["a"], limit: 1 }, { page: "nonsense" }, { limit: 0 }])
      await expect(client.beta.files.list(bad)).rejects.toMatchObject({ status: 400 });
    const nobody = new Anthropic({ baseURL: platform.url, apiKey: "tendon_none", maxRetries: 0 });
    await expect(nobody.beta.files.list()).rejects.toMatchObject({ status: 401 });
    expect(await all(client.beta.files.list())).toEqual(files);
    expect(await storedBytes()).toBe(before);
  });
});

/** Of the workspace that the key works in. */
async function storedBytes(): Promise<bigint> {
  return (await platform.client(AdminService).getWorkspaceUsage({})).storedBytes;
}
