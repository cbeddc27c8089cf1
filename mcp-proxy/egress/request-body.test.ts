import type { IncomingMessage } from "node:http";
import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { BodyBudget, MAX_LOOKED_INTO_BYTES, readBody } from "./request-body.ts";

const MIB = MAX_LOOKED_INTO_BYTES;

function begin(budget: BodyBudget, sessionId: string) {
  const stream = new PassThrough({ highWaterMark: MIB });
  const headers = new Map([["content-length", [String(MIB)]]]);
  const request = stream as unknown as IncomingMessage;
  return { stream, body: readBody(request, headers, { isLookedInto: true, budget, sessionId }) };
}

test("a session whose bodies are held and never end leaves room for the bodies of others, and has room again once they are gone", async () => {
  const budget = new BodyBudget(8 * MIB, 2 * MIB);
  const stalled = [1, 2].map(() => begin(budget, "greedy"));
  for (const { stream } of stalled) stream.write(Buffer.alloc(MIB - 1));
  // The third is read when the first two are held: they came before it.
  const third = begin(budget, "greedy");
  third.stream.end(Buffer.alloc(MIB));
  await expect(third.body).rejects.toMatchObject({ reason: "unavailable" });
  const other = begin(budget, "modest");
  other.stream.end(Buffer.alloc(MIB));
  const body = await other.body;
  expect(body).toMatchObject({ kind: "whole" });
  if (body.kind === "whole") body.release();
  for (const each of stalled) {
    each.stream.destroy();
    await expect(each.body).rejects.toThrow("broke the connection");
  }
  const again = begin(budget, "greedy");
  again.stream.end(Buffer.alloc(MIB));
  expect(await again.body).toMatchObject({ kind: "whole" });
});
