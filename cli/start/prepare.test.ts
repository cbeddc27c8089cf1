import { createServer } from "node:net";
import { expect, test } from "vitest";
import { keptPort } from "./prepare.ts";

const HOST = "127.0.0.1";

test("a program that starts again keeps its port, unless somebody has it by then", async () => {
  const port = await keptPort(HOST, 0);
  expect(port).toBeGreaterThan(0);
  expect(await keptPort(HOST, port)).toBe(port);
  const other = createServer();
  await new Promise<void>((resolve) => other.listen({ host: HOST, port, exclusive: true }, resolve));
  try {
    expect(await keptPort(HOST, port)).not.toBe(port);
  } finally {
    other.close();
  }
});
