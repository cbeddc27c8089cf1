/** Files that messages and results name by their ids: the built programs, the official client, the model faked at its wire. */
import { createHash } from "node:crypto";
import type Anthropic from "@anthropic-ai/sdk";
import { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type MessagesRequest, toolUse, turn } from "../kit/fake-messages-api.ts";
import { HttpRig } from "../kit/http-rig.ts";
import type { Platform } from "../kit/platform.ts";

const PNG = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
  "base64",
);
/** Larger than what a brain reads with a page of events. */
const PDF = Buffer.concat([Buffer.from("%PDF-1.7\n"), Buffer.alloc(1024 * 1024, "x")]);

let rig: HttpRig;
let platform: Platform;
let client: Anthropic;
let agent: string;
let environment: string;

beforeAll(async () => {
  rig = await HttpRig.start(answerTo);
  ({ platform, client } = rig);
  const tools = [
    {
      type: "custom" as const,
      name: "scan",
      description: "scans",
      input_schema: { type: "object" as const },
    },
  ];
  agent = (await client.beta.agents.create({ name: "a", model: "claude-test", tools })).id;
  environment = (await client.beta.environments.create({ name: "e", config: { type: "cloud" } })).id;
});

afterAll(async () => {
  await rig?.stop();
  expect(rig?.api.refusals).toEqual([]);
});

function answerTo({ messages }: MessagesRequest) {
  const asksToScan = messages.at(-1)?.content.some((block) => block.type === "text" && block.text === "scan");
  return asksToScan ? turn([toolUse("scan", {})]) : turn(["seen"]);
}

const upload = async (name: string, bytes: Uint8Array) =>
  (await client.beta.files.upload({ file: await toFile(bytes, name) })).id;

const newSession = (initial_events: object[] = []) =>
  client.beta.sessions.create({ agent, environment_id: environment, initial_events } as never);

const send = (sessionId: string, ...events: object[]) =>
  client.beta.sessions.events.send(sessionId, { events } as never);

const message = (...content: object[]) => ({ type: "user.message", content });
const text = (said: string) => ({ type: "text", text: said });
/** What no other session says. */
const LOOK = "look at these";
const image = (file_id: string) => ({ type: "image", source: { type: "file", file_id } });
const document = (file_id: string, more: object = {}) => ({
  type: "document",
  source: { type: "file", file_id },
  ...more,
});

async function eventsOf(sessionId: string): Promise<Record<string, unknown>[]> {
  const found: Record<string, unknown>[] = [];
  for await (const event of client.beta.sessions.events.list(sessionId)) found.push(event as never);
  return found;
}

const idle = (sessionId: string, times: number) =>
  eventually(
    async () =>
      (await eventsOf(sessionId)).filter(({ type }) => type === "session.status_idle").length >= times,
    { withinMs: 60_000, everyMs: 20 },
  );

type Block = Record<string, unknown> & { content?: Block[] };

/** Blocks of these types that the newest request with these words shows, those within results too. */
function shown(words: string, ...types: string[]): Block[] {
  const newest = rig.api.requests.findLast(({ body }) => body.includes(words))!;
  const { messages } = newest.json as unknown as { messages: { content: Block[] }[] };
  const blocks = messages
    .flatMap(({ content }) => content)
    .flatMap((block) => [block, ...(block.content ?? [])]);
  return blocks
    .filter(({ type }) => types.includes(String(type)))
    .map(({ cache_control: _, source, ...block }) => ({ ...block, source: summary(source) }));
}

/** Bytes by their hash: a difference is read more easily. */
function summary(source: unknown): unknown {
  const { data, ...rest } = (source ?? {}) as { data?: string };
  return {
    ...rest,
    sha256: createHash("sha256")
      .update(data ?? "")
      .digest("hex"),
  };
}

const inline = (media_type: string, bytes: Buffer) =>
  summary({ type: "base64", media_type, data: bytes.toString("base64") });

describe("a file that a message names", () => {
  it("is shown to the model as if it had been sent along, also after it was deleted, and in a fork", async () => {
    const [picture, report, notes] = await Promise.all([
      upload("picture.bin", PNG),
      upload("report.pdf", PDF),
      upload("notes.md", Buffer.from("# Größe\n")),
    ]);
    const sent = [
      text(LOOK),
      image(picture),
      document(report, { title: "Report", context: "of last week" }),
      document(notes),
    ];
    const session = await newSession([message(...sent)]);
    await idle(session.id, 1);
    const expected = [
      { type: "image", source: inline("image/png", PNG) },
      {
        type: "document",
        source: inline("application/pdf", PDF),
        title: "Report",
        context: "of last week",
      },
      { type: "document", source: summary({ type: "text", media_type: "text/plain", data: "# Größe\n" }) },
    ];
    expect(shown(LOOK, "image", "document")).toEqual(expected);
    const [stored] = (await eventsOf(session.id)).filter(({ type }) => type === "user.message");
    expect(stored!.content).toEqual(sent);

    for (const id of [picture, report, notes]) await client.beta.files.delete(id);
    await send(session.id, message(text("again")));
    await idle(session.id, 2);
    expect(shown(LOOK, "image", "document")).toEqual(expected);

    const { session: fork } = await platform.client(SessionService).forkSession({ sessionId: session.id });
    await send(fork!.id, message(text("in the fork")));
    await idle(fork!.id, 3);
    expect(shown(LOOK, "text").at(-1)).toMatchObject(text("in the fork"));
    expect(shown(LOOK, "image", "document")).toEqual(expected);
  });

  it("is shown where a client's tool answers with it", async () => {
    const scan = await upload("scan.png", PNG);
    const session = await newSession([message(text("scan"))]);
    await idle(session.id, 1);
    const [call] = (await eventsOf(session.id)).filter(({ type }) => type === "agent.custom_tool_use");
    await send(session.id, {
      type: "user.custom_tool_result",
      custom_tool_use_id: call!.id,
      content: [text("scanned"), image(scan)],
    });
    await idle(session.id, 2);
    expect(shown("scanned", "image")).toEqual([{ type: "image", source: inline("image/png", PNG) }]);
  });
});

describe("a request that comes again when its file is gone", () => {
  it("is answered as it was: events with ids of their own, an outcome's too, and a session's creation", async () => {
    const file = await upload("once.txt", Buffer.from("once"));
    const [said, defined] = ["sevt_01m8pp4dgh7d6kqc0rap9as001", "sevt_01m8pp4dgh7d6kqc0rap9as002"];
    const session = await newSession();
    const idsOf = ({ data = [] }: { data?: { id?: string }[] }) => data.map(({ id }) => id);
    const outcome = {
      type: "user.define_outcome",
      description: "do",
      rubric: { type: "file", file_id: file },
    };
    const once = () =>
      send(session.id, { ...message(document(file)), id: said }, { ...outcome, id: defined });
    const body = { agent, environment_id: environment, initial_events: [message(document(file))] };
    const make = (more: object = {}) =>
      client.beta.sessions.create({ ...body, ...more } as never, { headers: { "Idempotency-Key": "made" } });
    const [first, made] = [await once(), await make()];
    expect(idsOf(first)).toEqual([said, defined]);
    await client.beta.files.delete(file);

    expect(idsOf(await once())).toEqual([said, defined]);
    expect(await make()).toMatchObject({ id: made.id });
    await expect(make({ title: "other" })).rejects.toMatchObject({ status: 404 });
    const other = { ...message(document(file), text("more")), id: said };
    await expect(send(session.id, other)).rejects.toMatchObject({ status: 404 });
    const events = await eventsOf(session.id);
    expect(events.filter(({ type }) => type === "user.message")).toHaveLength(1);
  });
});

describe("refused, with nothing kept", () => {
  it.each([
    ["a file that is not there", () => Promise.resolve("file_none"), document, 404, /file_none/],
    ["a file that is gone", goneFile, document, 404, /file_/],
    [
      "a text as an image",
      () => upload("a.png", Buffer.from("text")),
      image,
      400,
      /source\.file_id: is no image/,
    ],
    [
      "an archive",
      () => upload("a.docx", Buffer.from("PK\x03\x04\0")),
      document,
      400,
      /neither a PDF nor text/,
    ],
    ["a file that no event can hold", largeFile, document, 413, /source\.file_id: has more than \d+ bytes/],
  ])("%s", async (_, file, block, status, why) => {
    const session = await newSession();
    const id = await file();
    const refused = { status, message: expect.stringMatching(why) };
    await expect(send(session.id, message(text("first")), message(block(id)))).rejects.toMatchObject(refused);
    expect(await eventsOf(session.id)).toEqual([]);
    await expect(newSession([message(block(id))])).rejects.toMatchObject(refused);
  });

  it("more than a hundred of them in a request", async () => {
    const note = await upload("note.txt", Buffer.from("note"));
    const session = await newSession();
    const many = Array.from({ length: 51 }, () => document(note));
    await expect(send(session.id, message(...many), message(...many))).rejects.toMatchObject({
      status: 400,
      message: expect.stringContaining(
        "events[1].content[49].source.file_id: a request has at most 100 blocks",
      ),
    });
    await send(session.id, message(...many), message(...many.slice(0, 49), text("all of them")));
    await idle(session.id, 1);
    expect(shown("all of them", "document")).toHaveLength(100);
  });
});

async function goneFile(): Promise<string> {
  const id = await upload("gone.txt", Buffer.from("gone"));
  await client.beta.files.delete(id);
  return id;
}

let large: Promise<string> | undefined;
function largeFile(): Promise<string> {
  large ??= upload("large.pdf", Buffer.concat([Buffer.from("%PDF-"), Buffer.alloc(25 * 1024 * 1024)]));
  return large;
}
