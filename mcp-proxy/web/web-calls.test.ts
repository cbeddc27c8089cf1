/** How much a proxy takes upon itself at a time. The server and the web are the test's own; no time passes. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { createLogger } from "../../kit/log.ts";
import { NO_TRACING } from "../../kit/trace.ts";
import {
  BeginWebCallResponseSchema,
  FinishLargeWebCallResponseSchema,
  type FinishWebCallRequestSchema,
  FinishWebCallResponseSchema,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { eventually } from "../../test/kit/eventually.ts";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { testPdf } from "../../test/kit/test-pdf.ts";
import { WebCalls } from "./web-calls.ts";

type Finished = MessageInitShape<typeof FinishWebCallRequestSchema>;

const PDF = testPdf({ paddingBytes: 10_000 });
const MOST = 8;

test("so many PDFs are held at a time: one more is told so, a page is read all the same, and room comes back", async () => {
  const results = new Map<string, Finished>();
  /** Ends of the pages that keep their readers waiting. */
  const ends: (() => void)[] = [];
  const slow = () =>
    new ReadableStream<Uint8Array>({
      start(stream) {
        stream.enqueue(PDF.subarray(0, 5_000));
        ends.push(() => {
          stream.enqueue(PDF.subarray(5_000));
          stream.close();
        });
      },
    });
  const bodies: Record<string, () => ConstructorParameters<typeof Response>[0]> = {
    slow,
    small: () => new Uint8Array(PDF),
    text: () => "hello",
  };
  const calls = new WebCalls({
    credentials: {
      beginWebCall: async ({ toolUseId = "" }) => {
        const input = JSON.stringify({ url: `http://pages.example.com/${toolUseId.split("-")[0]}` });
        return create(BeginWebCallResponseSchema, { toolName: "web_fetch", input });
      },
      finishWebCall: async (request) => {
        results.set(request.toolUseId!, request as Finished);
        return create(FinishWebCallResponseSchema);
      },
      finishLargeWebCall: () => ({
        send: async () => {},
        end: async () => create(FinishLargeWebCallResponseSchema),
        cancel: () => {},
      }),
    },
    fetchPublic: async (url) => new Response(bodies[new URL(url).pathname.slice(1)]!()),
    fetch: () => Promise.reject(new Error("nothing is searched")),
    provider: undefined,
    clock: new FakeClock(),
    log: createLogger("test", "silent"),
    tracing: NO_TRACING,
  });
  let count = 0;
  const read = async (name: string, session = "sesn_other") => {
    const toolUseId = `${name}-${count++}`;
    const caller = { sessionId: session, workspaceId: "wrkspc_1", epoch: 1n };
    await calls.run({ caller, toolUseId, trace: undefined });
    return results.get(toolUseId)!;
  };
  const running = Array.from({ length: MOST }, () => read("slow", "sesn_slow"));
  const refused = await eventually(async () => {
    const result = await read("small");
    return result.isError ? result : undefined;
  });
  expect(refused).toMatchObject({ failureReason: "TOO_MANY_REQUESTS", outcome: "too_many_pdfs" });
  expect(refused.content).toContain("too_many_requests: so many PDFs");
  expect(await read("text")).toMatchObject({ isError: false });
  for (const end of ends) end();
  for (const result of await Promise.all(running)) expect(result).toMatchObject({ isError: false });
  expect(await read("small")).toMatchObject({ isError: false });
});
