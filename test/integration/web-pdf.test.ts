/** PDFs that `web_fetch` reads, from a page's first byte to the log, as a proxy runs it for a brain. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { testPdf } from "../kit/test-pdf.ts";
import {
  startWebRig,
  startWebSide,
  textOf,
  type WebResult,
  type WebRig,
  type WebSession,
  type WebSide,
} from "../kit/web-rig.ts";

const directory = mkdtempSync(join(tmpdir(), "tendon-web-pdf-"));
const HOST = "pages.example.com";
const MIB = 1024 * 1024;
let web: WebSide;
let rig: WebRig;
let session: WebSession;

beforeAll(async () => {
  web = await startWebSide(directory);
  rig = await startWebRig(web, { searchUrl: "http://127.0.0.1:9/", searchKey: "none" });
  session = await rig.newSession();
});
afterAll(async () => {
  await rig?.stop();
  await web?.stop();
  rmSync(directory, { recursive: true, force: true });
});
beforeEach(() => web.pages.clear());

const page = (path: string, body: Buffer | string, headers: Record<string, string | number> = {}) =>
  web.pages.set(
    `${HOST}${path}`,
    (_, response) =>
      void response.writeHead(200, { "content-type": "application/pdf", ...headers }).end(body),
  );
const read = (path: string, of = session) => of.call("web_fetch", { url: `http://${HOST}${path}` });

/** The bytes of the document in a result. */
function pdfOf({ content }: WebResult): Buffer {
  const { source } = content.find(({ type }) => type === "document") as { source: { data: string } };
  return Buffer.from(source.data, "base64");
}

describe("a PDF", () => {
  test("comes as a document with all its bytes, after a text that says what it is", async () => {
    const pdf = testPdf({ pages: 3 });
    page("/papers/On%20tea.pdf", pdf);
    const result = await read("/papers/On%20tea.pdf");
    expect(result).toMatchObject({ is_error: false, upstream_ms: expect.any(Number) });
    expect(result.content).toEqual([
      {
        type: "text",
        text: `URL: http://${HOST}/papers/On%20tea.pdf\n\nA PDF of 3 pages, ${pdf.length} bytes.`,
      },
      {
        type: "document",
        source: { type: "base64", media_type: "application/pdf", data: pdf.toString("base64") },
        title: "On tea.pdf",
        context: "3 pages",
      },
    ]);
  });

  test("is known by its beginning where its type says nothing or another text, and unpacked where it was packed", async () => {
    const pdf = testPdf({ pages: 2, isPacked: true });
    const types = ["", "application/octet-stream", "application/force-download", "text/plain", "text/html"];
    for (const [at, type] of types.entries()) page(`/${at}`, pdf, { "content-type": type });
    page("/packed", gzipSync(pdf), { "content-encoding": "gzip" });
    for (const path of ["0", "1", "2", "3", "4", "packed"]) {
      const result = await read(`/${path}`);
      expect(textOf(result)).toContain("A PDF of 2 pages");
      expect(pdfOf(result).equals(pdf)).toBe(true);
    }
  });

  test("is shown whole, whatever the agent's bound for text", async () => {
    const pdf = testPdf({ pages: 40 });
    page("/a", pdf);
    const short = await rig.newSession({ fetch: { maxContentTokens: 10 } });
    expect(pdfOf(await read("/a", short)).equals(pdf)).toBe(true);
  });

  test("of many megabytes reaches the log, in pieces, and once (X3)", async () => {
    const pdf = testPdf({ paddingBytes: 4 * MIB });
    page("/large", pdf);
    const toolUseId = await session.uses("web_fetch", { url: `http://${HOST}/large` });
    expect(await Promise.all([session.post(toolUseId), session.post(toolUseId)])).toEqual([200, 200]);
    expect(pdfOf((await session.result(toolUseId))!).equals(pdf)).toBe(true);
    // Whoever reads the log is told its size, and no more.
    const { events } = await rig.vault.home.sessions.getEvents({
      sessionId: session.id,
      types: ["agent.tool_result"],
      order: 2,
      limit: 1,
    });
    expect(events[0]!.payload).toBe("");
    expect(Number(events[0]!.payloadOmitted!.sizeBytes)).toBeGreaterThan(5 * MIB);
  });

  test.each([
    ["more bytes than are read, as its length says", { "content-length": 11 * MIB }],
    ["more bytes than are read, which nothing says", { "transfer-encoding": "chunked" }],
  ])("with %s is an error", async (_, headers) => {
    page("/huge", testPdf({ paddingBytes: 11 * MIB }).subarray(0, 11 * MIB), headers);
    const result = await read("/huge");
    expect(result).toMatchObject({ failure: { part: "upstream", reason: "CONTENT_TOO_LARGE" } });
    expect(textOf(result)).toMatch(
      /^content_too_large: .* is a PDF of .*more than the 10485760 that are read$/,
    );
  });

  test("that no model reads is an error that says why", async () => {
    page("/long", testPdf({ pages: 601 }));
    page("/locked", testPdf({ isEncrypted: true }));
    page("/broken", testPdf({ paddingBytes: 10_000 }).subarray(0, 5_000));
    expect(textOf(await read("/long"))).toBe(
      `content_too_large: http://${HOST}/long has 601 pages; no more than 600 are read`,
    );
    expect(textOf(await read("/locked"))).toMatch(/^unsupported_content_type: .* is an encrypted PDF/);
    expect(textOf(await read("/broken"))).toMatch(/^unsupported_content_type: .* damaged or broken off$/);
  });
});

describe("what is called a PDF and is none", () => {
  test("is read as the text that it is, or is an error", async () => {
    page("/login", "<html><title>Sign in</title><p>First sign in.</p></html>");
    page("/zip", Buffer.from([0x50, 0x4b, 3, 4, 0, 0]));
    page("/empty", "");
    expect(textOf(await read("/login"))).toBe(`URL: http://${HOST}/login\nTitle: Sign in\n\nFirst sign in.`);
    expect(textOf(await read("/zip"))).toBe(
      `unsupported_content_type: http://${HOST}/zip is no text and no PDF but binary; images and other binary files are not read`,
    );
    expect(textOf(await read("/empty"))).toContain("(The page has no text.)");
  });

  test("a text about PDFs stays a text", async () => {
    page("/about", "%PDF-1.4 is how they begin.", { "content-type": "text/plain" });
    expect(textOf(await read("/about"))).toBe(`URL: http://${HOST}/about\n\n%PDF-1.4 is how they begin.`);
  });
});

test("a large result that breaks off, or is none, is not stored", async () => {
  const proxy = rig.vault.server.client(CredentialService, rig.vault.proxyKey);
  const toolUseId = await session.uses("web_fetch", { url: `http://${HOST}/` });
  await session.begin(toolUseId);
  const request = { sessionId: session.id, toolUseId, outcome: "200" };
  const sent = async (...pieces: (string | "end")[]) => {
    const call = proxy.finishLargeWebCall();
    await call.send({ kind: { case: "request", value: request } });
    for (const piece of pieces) {
      const kind =
        piece === "end"
          ? ({ case: "end", value: {} } as const)
          : ({ case: "piece", value: Buffer.from(piece) } as const);
      await call.send({ kind });
    }
    return call.end();
  };
  await expect(sent(`[{"type":"te`)).rejects.toMatchObject({ reason: "INVALID_FIELD" });
  await expect(sent(`[{"type":"document","title":"x"}]`, "end")).rejects.toMatchObject({
    reason: "INVALID_FIELD",
  });
  expect(await session.result(toolUseId)).toBeUndefined();
  await sent(`[{"type":"te`, `xt","text":"ü"}]`, "end");
  expect(textOf((await session.result(toolUseId))!)).toBe("ü");
});
